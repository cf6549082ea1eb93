#!/bin/bash
# The next GPU host, from the checkout's root; bundle in /tmp/b. A machine without scratch/b1 makes it in 80 s:
#   python -m reproducers.bundle pack02 pack03 pack05 pack09 pack12 pack16 pack17 pack33 pack35 --pins live --target cp312-linux-x86_64 --split 27M
#   parts 01 and 03 to scratch/b1, 02 to scratch/b2; git archive --format=tar.gz main packs manifest.yaml > scratch/main_packs.tgz; receipts out of the way (64 MiB)
#   trees for bench21: for t in a:main b:b114154 c:cab0e93 d:0332ab9; do mkdir -p scratch/t/${t%:*}/layers; git archive ${t#*:} model/layers/mamba3 | tar x -C scratch/t/${t%:*} --strip-components=1; done
#   first, one GPU: kernels by turns, `timeout 90 python3 scratch/k/bench21.py a b d c` (carry scratch/k, scratch/t; the last tree is run with states kept, too; d: the main kernel as a pipeline, in training only if it is faster here)
#   then, one GPU, 600 s: pytest -m gpu whole, stage tests with LIMIT=540 N=8: TileLang's kernels compile for some 300 s on a bare machine
#   then two H200s (carry b1, b2, cache.aa if there is one, next.sh, env.sh, main_packs.tgz), stage states (CALL=385): --keep-states 8, and 13 with expandable segments, and none, by turns
#   in each: mkdir -p /tmp/b; cp scratch/b1/* scratch/b2/* /tmp/b/; . scratch/env.sh; T0=$(date +%s); install; cd "$HERE"; date +%s > /tmp/t0; CALL=$((385 - $(date +%s) + T0)) timeout -k 5 400 bash scratch/next.sh states
# main_packs.tgz (git archive --format=tar.gz main packs manifest.yaml) is what training reads; cache.aa holds compiled kernels.
export PATCHLANE_HOST=${HOST_ALIAS:-h200-49x4}
. scratch/env.sh
PINS=${PINS:-""}
[ -d /tmp/wt ] || { cp -r /tmp/w /tmp/wt; rm -rf /tmp/wt/packs; tar xzf scratch/main_packs.tgz -C /tmp/wt; }
rm -rf /tmp/wt/model; cp -r "$HERE/model" /tmp/wt/model
FP8="--path mtp_proj=fp8 --path mamba_proj=fp8_parts"
BASE=${PYTHONPATH%:/tmp/w}
T=$(date +%s); left() { echo $(( ${CALL:-520} - $(date +%s) + T )); }
runs() { local need=$1 gpu=$2 name=$3; shift 3; [ -e /tmp/did_$name ] && return; [ $(left) -lt $need ] && return
  (cd ${WT:-/tmp/wt}; export PYTHONPATH=$BASE:${WT:-/tmp/wt} CUDA_VISIBLE_DEVICES=$gpu; timeout -k 5 $(left) "$@" --save-every 0 --out /tmp/runs/$name >> $L/$name.log 2>&1; c=$?; stamp "$name -> $c"; grep -h "^step" $L/$name.log | tail -2; [ $c = 0 ] && touch /tmp/did_$name); }
seed() { runs $1 $2 $3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed $4 "${@:5}"; }
wide() { runs ${NEED:-90} ${PAIR:-0,1} $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --accumulate 4 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
nam() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_bf16 --ep 1 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
pins() { for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
tests() { (export CUDA_VISIBLE_DEVICES=${GPU:-1}; step ${LIMIT:-400} gpu_tests python3 -m pytest -v -m gpu -n ${N:-4} -p no:cacheprovider -rsf --durations=20 ${TESTS:-tests}); tail -40 $L/gpu_tests.log; }
case $1 in
best) export NEED=55; one() { wide "$@" --accumulate 1 --steps 20; }
  one one; (export NCCL_MIN_CTAS=64 NCCL_MAX_CTAS=64; one ctas64)
  STEPS=16 wide profile --profile 16:16; STEPS=16 wide four_fp8_profile $FP8 --profile 16:16
  tiny() { runs 25 0 $1 python3 -m model.train nam56r_tiny --micro-batch 2 --sequence 256 --steps 8 --bf16 --path mamba3=torch_rows --path dsa=megatron --patches 16,33 --path loss=liger "${@:2}"; }
  NEW="--path mamba_proj=bf16_parts --path norm=te --path bc_norm=te --path m2rnn=triton_whole --path mla=cudnn --path rope=triton --path router=parts"
  tiny graphs --cuda-graphs $NEW; tiny nographs --no-cuda-graphs $NEW
  runs 30 0,1 tiny_ep2 torchrun --nproc-per-node 2 -m model.train nam56r_tiny --ep 2 --bf16 --steps 12 --sequence 256 --micro-batch 2;;
gluon) export NEED=55; one() { wide "$@" --accumulate 1 --steps 20; }
  one blocks --path mamba3=blocks_rows --nccl-ctas 64; one hopper --nccl-ctas 64
  STEPS=16 wide four_profile --nccl-ctas 64 --profile 16:16; STEPS=15 wide four_fp8 $FP8 --nccl-ctas 64; STEPS=14 nam nam_four --accumulate 4 --nccl-ctas 64;;
queues) export NEED=100; four() { STEPS=13 wide "$@" --nccl-ctas 64; }
  NEED=60 STEPS=16 wide four_profile --nccl-ctas 64 --profile 16:16
  CUDA_SCALE_LAUNCH_QUEUES=1x four q1; CUDA_SCALE_LAUNCH_QUEUES=4x four q4; four q_fp8 $FP8;;
kept) export NEED=85
  (cd "$HERE"; CUDA_VISIBLE_DEVICES=1 timeout 60 python3 scratch/h/bench21.py a b > $L/bench21.log 2>&1) & (GPU=0 LIMIT=75 N=4 TESTS="tests/model/layers/attention/test_divergence.py tests/model/journeys/test_gpu_paths.py -k on_a_gpu_rows_are_chosen" tests); wait; cat $L/bench21.log; stamp bench
  IDX=; grep -q "2 passed" $L/gpu_tests.log || IDX="--path indexer=rows"; stamp "indexer: ${IDX:-triton}"
  STEPS=15 wide four_profile $IDX --nccl-ctas 64 --profile 15:15
  STEPS=15 wide four_kept_profile $IDX --path mamba3=hopper_kept_rows --nccl-ctas 64 --profile 15:15
  STEPS=13 NEED=70 wide four_fp8 $FP8 $IDX --nccl-ctas 64;;
both) export NEED=75 PAIR=2,3; P="python3 -m pytest -q -m gpu -p no:cacheprovider -rsf --durations=25"
  (export CUDA_VISIBLE_DEVICES=0; step 340 gpu_tests0 $P -n 12 tests/model/journeys/test_gpu_paths.py tests/model/layers) & a=$!
  (export CUDA_VISIBLE_DEVICES=1; step 340 gpu_tests1 $P -n 10 tests/model/journeys/test_mamba3_gpu.py tests/model/journeys/test_gpu_graphs.py tests/model/step tests/model/profile tests/model/generation tests/journeys) & b=$!
  NEED=95 STEPS=14 wide four_kept_profile --path mamba3=hopper_kept_rows --nccl-ctas 64 --profile 14:14
  STEPS=13 wide four_made --nccl-ctas 64; STEPS=13 wide four_kept_fp8 --path mamba3=hopper_kept_rows $FP8 --nccl-ctas 64
  wait $a $b; tail -40 $L/gpu_tests0.log $L/gpu_tests1.log;;
states) export NEED=85
  STEPS=15 wide four_keep8_profile --keep-states 8 --nccl-ctas 64 --profile 15:15
  (export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; STEPS=15 wide four_keep13_profile --keep-states 13 --nccl-ctas 64 --profile 15:15)
  STEPS=13 NEED=70 wide four_sparse --path sparse=kept --nccl-ctas 64; STEPS=13 NEED=70 wide four_made --nccl-ctas 64;;
pipes) export NEED=50
  STEPS=14 wide four_profile --nccl-ctas 64 --profile 14:14; STEPS=13 wide four_fp8 $FP8 --nccl-ctas 64; STEPS=12 wide four_blocks --path mamba3=blocks_rows --nccl-ctas 64;;
seeds) seed 200 0 hopper_seed2 2 & seed 200 1 hopper_seed3 3; wait;;
fwd) (cd /tmp/wt; export PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=0; for o in '128 1' '128 2' '256 0' '256 1' '256 2' '128 0'; do timeout 150 python3 "$HERE/scratch/k/fwd.py" $o > "$L/fwd_${o// /_}.log" 2>&1 & done; wait; timeout 60 python3 "$HERE/scratch/k/fwd.py" all > $L/fwd.log 2>&1); cat $L/fwd.log;;
tests) LIMIT=${LIMIT:-390} GPU=0 tests
  export NEED=70; for q in 1x 4x; do CUDA_SCALE_LAUNCH_QUEUES=$q runs 60 0 queues_$q python3 -m model.train 1xh200_quarter --steps 24 --evaluate-every 1000; done;;
final) LIMIT=${LIMIT:-395} GPU=0 tests
  quarter() { runs 45 0 $1 python3 -m model.train 1xh200_quarter --steps 26 --evaluate-every 1000 --profile 24:24 "${@:2}"; }
  (cd "$HERE"; bash scratch/k/bench17.sh > $L/bench17.log 2>&1); cat $L/bench17.log; stamp bench17
  quarter quarter_late; quarter quarter_early --early-reads;;
caches) du -sh ~/.triton ~/.tilelang; (cd /; tar cf - root/.triton root/.tilelang | xz -T0 -3 > $OUT/cache.aa);;
esac
stamp "stage $1"; cat $L/stages.log
