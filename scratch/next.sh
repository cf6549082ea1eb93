#!/bin/bash
# The next GPU host, from the checkout's root (not from /tmp/w, whose scratch/ is that of the first call); bundle in /tmp/b.
#   call 1: mkdir -p /tmp/b; cp scratch/b1/* /tmp/b/          (carry scratch/b1)
#   call 2: cp scratch/b2/* /tmp/b/; tar xf scratch/cache.aa -C /; . scratch/env.sh; install      (carry b2, cache.aa, *.sh, bench.py, main_packs.tgz)
#   then:   CALL=520 timeout -k 5 560 bash scratch/next.sh STAGE; tar czf $OUT/l.tgz -C /tmp logs receipts runs
# Two H200s (needs_h200: three rows want 127 GiB): warm, wide, best. Then one H100 (nvidia-h100-x1): seeds.
# main_packs.tgz (git archive --format=tar.gz main packs manifest.yaml) is what training reads; cache.aa holds compiled kernels.
export PATCHLANE_HOST=${HOST_ALIAS:-h200-47x2}
. scratch/env.sh
PINS=${PINS:-"main:16"}
[ -d /tmp/wt ] || { cp -r /tmp/w /tmp/wt; rm -rf /tmp/wt/packs; tar xzf scratch/main_packs.tgz -C /tmp/wt; }
BF16="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=te --path norm=te --path m2rnn=triton_whole"
FP8="--path mtp_proj=fp8 --path mamba_proj=fp8_parts"; PARTS="--path mamba_proj=bf16_parts"
BASE=${PYTHONPATH%:/tmp/w}
T=$(date +%s); left() { echo $(( ${CALL:-520} - $(date +%s) + T )); }
runs() { local need=$1 gpu=$2 name=$3; shift 3; [ -e /tmp/did_$name ] && return; [ $(left) -lt $need ] && return
  (cd /tmp/wt; export PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=$gpu; timeout -k 5 $(left) "$@" --save-every 0 --out /tmp/runs/$name >> $L/$name.log 2>&1; c=$?; stamp "$name -> $c"; grep -h "^step" $L/$name.log | tail -2; [ $c = 0 ] && touch /tmp/did_$name); }
seed() { runs $1 $2 $3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed $4 "${@:5}"; }
wide() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --accumulate 4 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
nam() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_bf16 --ep 1 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
pins() { for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
tests() { (export CUDA_VISIBLE_DEVICES=${GPU:-1}; step ${LIMIT:-400} gpu_tests python3 -m pytest -q -m gpu -n ${N:-4} -p no:cacheprovider -rsf --durations=20 ${TESTS:-tests}); tail -40 $L/gpu_tests.log; }
case $1 in
warm) TESTS="tests/model/journeys/test_gpu_paths.py tests/model/layers tests/journeys/test_minimals.py" tests; wide warm $BF16 $FP8 --path rope=triton_tables --path router=parts --steps 2 --accumulate 1;;
tests) GPU=0 tests;;
wide) export STEPS=20 NEED=60
  one() { wide "$@" --accumulate 1; }
  one base $BF16 $FP8; one rope $BF16 $FP8 --path rope=triton; one tables $BF16 $FP8 --path rope=triton_tables; one router $BF16 $FP8 --path rope=triton_tables --path router=parts
  (BASE=$HERE/scratch/names:$BASE; one names $BF16 $FP8 --path rope=triton_tables --path router=parts);;
best) export STEPS=14; wide four $BF16 $FP8 --path rope=triton_tables --path router=parts; wide bf16_four $BF16 $PARTS --path rope=triton_tables --path router=parts
  wide profile $BF16 $FP8 --path rope=triton_tables --path router=parts --accumulate 2 --steps 16 --profile 14:15;;
seeds) for s in 1 2 3; do seed 190 0 bf16_seed$s $s $BF16 $PARTS --path rope=triton_tables --path router=parts; done;;
caches) du -sh ~/.triton ~/.tilelang; (cd /; tar cf - root/.triton root/.tilelang | xz -T0 -3 > $OUT/cache.aa);;
esac
stamp "stage $1"; cat $L/stages.log
