#!/bin/bash
# The next GPU host, from the checkout's root (not from /tmp/w, whose scratch/ is that of the first call); bundle in /tmp/b.
#   first, two H200s, stage queues (CALL=535, some 440 s): four micro-batches profiled (idle with steps read late), then by turns 1x and 4x, FP8
#          it needs scratch/main_packs.tgz anew: git archive --format=tar.gz main packs manifest.yaml > scratch/main_packs.tgz
#   then one H200 (it may count half), stage tests with LIMIT=480 N=8: pytest -m gpu whole takes more than 400 s; calls 1 and 2 below
#   kernels alone: timeout 90 python3 scratch/k/bench14.py (errors and times of the working tree's; 70 s), bench15.sh ab (main kernels fo/back_a.py and back_b.py by turns), bench16.sh (gates, states with two turners), bench17.sh (y kept), bench9.py (rounds or shared), bench_ab.py (parts of the
#          pipeline left out: ws/ablate.py), ipc.py (loops by length)
#   call 1: mkdir -p /tmp/b; cp scratch/b1/* /tmp/b/          (two H200s, needs_h200; carry scratch/b1)
#   call 2: cp scratch/b2/* /tmp/b/; tar xf scratch/cache.aa -C /; . scratch/env.sh; install; cd "$HERE"      (carry b2, cache.aa, *.sh, main_packs.tgz)
#           CALL=545 timeout -k 5 560 bash scratch/next.sh gluon; tar czf $OUT/l.tgz -C /tmp logs runs
#           gluon: blocks_rows and hopper_rows by turns, one micro-batch; four micro-batches profiled, in FP8, and nam56r
#   later, one H200: install, then stage fwd (some 150 s: mamba-ssm's forward kernel by threads and stages), then tests (GPU=0 N=8), 320 s
# main_packs.tgz (git archive --format=tar.gz main packs manifest.yaml) is what training reads; cache.aa holds compiled kernels.
export PATCHLANE_HOST=${HOST_ALIAS:-h200-47x2}
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
wide() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --accumulate 4 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
nam() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_bf16 --ep 1 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
pins() { for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
tests() { (export CUDA_VISIBLE_DEVICES=${GPU:-1}; step ${LIMIT:-400} gpu_tests python3 -m pytest -q -m gpu -n ${N:-4} -p no:cacheprovider -rsf --durations=20 ${TESTS:-tests}); tail -40 $L/gpu_tests.log; }
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
