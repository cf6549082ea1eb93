#!/bin/bash
# The next GPU host, from the checkout's root; bundle in /tmp/b. A machine without scratch/b1 makes it in 80 s:
#   python -m reproducers.bundle pack02 pack03 pack05 pack09 pack12 pack16 pack17 pack33 pack35 --pins live --target cp312-linux-x86_64 --split 27M
#   parts 01 and 03 to scratch/b1, 02 to scratch/b2; git archive --format=tar.gz main packs manifest.yaml > scratch/main_packs.tgz; receipts out of the way (64 MiB)
#   first, two GPUs (H100s will do: kind nvidia-h100-x2), CALL=260: stage nan: nam56r_tiny --ep 2 --cuda-graphs with all of the routers captured, parts of them, gradients cloned out of the graphs' pool, nothing beside a replay. TE #2937 and Megatron #6643 are the suspects
#   then four GPUs with needs_h200 (x4 costs what x2 does), CALL=300: stage again: seed 1 of the quarter once more; bf16 and FP8 by today's paths; what a residual sum in the norm's kernel, or in the product before it, would save
#   in each: mkdir -p /tmp/b /tmp/logs; cp scratch/b1/* scratch/b2/* /tmp/b/; tar xf scratch/cache.aa -C /; . scratch/env.sh; T0=$(date +%s); install; cd "$HERE"; date +%s > /tmp/t0; CALL=$((300 - $(date +%s) + T0)) timeout -k 5 305 bash scratch/next.sh again > /tmp/logs/stage.log 2>&1; tail -60 /tmp/logs/stage.log; rm -f /tmp/runs/*/.tmp*; find /tmp/runs -name "trace*" -delete; tar czf $OUT/l.tgz -C /tmp logs runs
#   carry b1, b2, next.sh, env.sh, main_packs.tgz, scratch/n: mkdir scratch/n; cp scratch/k/{nan_*,bench_add_norm}.py scratch/n, cache.aa if there is one
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
fin) export NEED=70
  (export CUDA_VISIBLE_DEVICES=3; step $(( $(left) - 5 )) gpu_tests python3 -m pytest -v -m gpu -p no:cacheprovider -rsf --durations=25 -n 6 tests/model/step tests/model/layers/attention tests/model/generation tests/model/journeys/test_gpu_graphs.py) &
  (NEED=180; runs 180 2 whole_kept_seed3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed 3) &
  STEPS=15 wide four_profile --nccl-ctas 64 --profile 15:15; STEPS=15 wide four_fp8 $FP8 --nccl-ctas 64
  wait; tail -n 40 $L/gpu_tests.log;;
nan) export NEED=40  # which captured part has NaN under expert parallelism, and whether clones or waits heal it
  mk() { rm -rf /tmp/wn_$1; cp -r /tmp/wt /tmp/wn_$1; sed -i "s/modules = MODULES + ROUTERS \* (expert_parallel == 1)/modules = MODULES + $2/" /tmp/wn_$1/model/layers/captured/graphs.py; cat "$HERE"/scratch/{k,n}/nan_$1.py >> /tmp/wn_$1/model/layers/captured/graphs.py 2>/dev/null; }
  mk all ROUTERS; mk router 'ROUTERS[:1]'; mk preprocess 'ROUTERS[1:]'; mk clone ROUTERS; mk sync ROUTERS; mk none '[]'
  for v in all none router preprocess clone sync; do WT=/tmp/wn_$v runs 35 0,1 nan_$v torchrun --nproc-per-node 2 -m model.train nam56r_tiny --ep 2 --bf16 --micro-batch 2 --sequence 256 --steps 6 --cuda-graphs --path mamba3=torch_rows --path dsa=megatron --patches 16,33 --path loss=liger; grep -h "^step\|fix\|Error" $L/nan_$v.log | tail -4; done;;
again) export NEED=70  # seed 1 once more on one GPU, FP8 beside bf16 on two
  (runs 180 2 whole_kept_seed1 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed 1) &
  (cd /tmp/wt; PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=3 timeout 90 python3 "$HERE"/scratch/n/bench_add_norm.py > $L/add_norm.log 2>&1; cat $L/add_norm.log) &
  STEPS=14 wide four --nccl-ctas 64; STEPS=14 wide four_fp8 $FP8 --nccl-ctas 64; wait;;
tests) LIMIT=${LIMIT:-390} GPU=0 tests
  export NEED=70; for q in 1x 4x; do CUDA_SCALE_LAUNCH_QUEUES=$q runs 60 0 queues_$q python3 -m model.train 1xh200_quarter --steps 24 --evaluate-every 1000; done;;
caches) du -sh ~/.triton ~/.tilelang; (cd /; tar cf - root/.triton root/.tilelang | xz -T0 -3 > $OUT/cache.aa);;
esac
stamp "stage $1"; cat $L/stages.log
