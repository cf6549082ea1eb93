#!/bin/bash
# The next GPU host, from the checkout's root (not from /tmp/w, whose scratch/ is that of the first call); bundle in /tmp/b.
#   call 1: mkdir -p /tmp/b; cp scratch/b1/* /tmp/b/          (carry scratch/b1)
#   call 2: cp scratch/b2/* /tmp/b/; tar xf scratch/cache.aa -C /; . scratch/env.sh; install      (carry b2, cache.aa, *.sh, bench.py, main_packs.tgz)
#   then:   CALL=520 timeout -k 5 560 bash scratch/next.sh STAGE; tar czf $OUT/l.tgz -C /tmp logs receipts runs
# Two H200s (needs_h200: three rows want 127 GiB): warm, wide, nam. Then one H100 (nvidia-h100-x1, half the time counts): seeds.
# main_packs.tgz (git archive --format=tar.gz main packs manifest.yaml) is what training reads; cache.aa holds compiled kernels.
export PATCHLANE_HOST=${HOST_ALIAS:-h200-45x2}
. scratch/env.sh
PINS=${PINS:-"main:16"}
[ -d /tmp/wt ] || { cp -r /tmp/w /tmp/wt; rm -rf /tmp/wt/packs; tar xzf scratch/main_packs.tgz -C /tmp/wt; }
OLD="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger --path rope=triton"
WHOLE="--path m2rnn=triton_whole"; KEPT="--path m2rnn=triton_kept"; FP8="--path mtp_proj=fp8"
BASE=${PYTHONPATH%:/tmp/w}
T=$(date +%s); left() { echo $(( ${CALL:-520} - $(date +%s) + T )); }
runs() { local need=$1 gpu=$2 name=$3; shift 3; [ -e /tmp/did_$name ] && return; [ $(left) -lt $need ] && return
  (cd /tmp/wt; export PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=$gpu; timeout -k 5 $(left) "$@" --save-every 0 --out /tmp/runs/$name >> $L/$name.log 2>&1; c=$?; stamp "$name -> $c"; grep -h "^step" $L/$name.log | tail -2; [ $c = 0 ] && touch /tmp/did_$name); }
seed() { runs $1 $2 $3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed $4 "${@:5}"; }
wide() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --accumulate 4 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
nam() { runs ${NEED:-90} 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_bf16 --ep 1 --steps ${STEPS:-14} --evaluate-every 1000 "${@:2}"; }
pins() { for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
tests() { F=$(find /tmp/store/trees -path "*megatron/core/models/common/embeddings/rope_utils.py" | head -1)
  (export PYTHONPATH=${F%/megatron/core/*}:$PYTHONPATH CUDA_VISIBLE_DEVICES=1; step 330 gpu_tests python3 -m pytest -q -m gpu -n 8 -p no:cacheprovider -rsf --durations=15 tests); tail -40 $L/gpu_tests.log; }
case $1 in
warm) pins & A=$!; (tests; wide warm $OLD $KEPT $FP8 --path mamba_proj=fp8_parts --path norm=te --steps 2 --accumulate 1) & B=$!; wait $A $B;;
wide) wide bf16 $OLD $WHOLE; wide parts $OLD $WHOLE --path mamba_proj=bf16_parts; wide norm $OLD $WHOLE --path mamba_proj=bf16_parts --path norm=te
  wide kept $OLD $KEPT --path mamba_proj=bf16_parts --path norm=te; wide fp8 $OLD $KEPT $FP8 --path mamba_proj=fp8 --path norm=te; wide fp8_parts $OLD $KEPT $FP8 --path mamba_proj=fp8_parts --path norm=te
  wide bc $OLD $KEPT $FP8 --path mamba_proj=fp8_parts --path norm=te --path bc_norm=te;;
nam) nam nam_all $OLD $KEPT $FP8 --path mamba_proj=fp8_parts --path norm=te --micro-batch 4 --accumulate 4; nam nam_base --micro-batch 4;;
profile) wide profile $OLD $KEPT $FP8 --path mamba_proj=fp8_parts --path norm=te --accumulate 2 --steps 16 --profile 14:15;;
seeds) for s in 1 2 3; do seed 190 0 bf16_seed$s $s $OLD $KEPT --path mamba_proj=bf16_parts --path norm=te; done;;
caches) du -sh ~/.triton ~/.tilelang; (cd /; tar cf - root/.triton root/.tilelang | xz -T0 -3 > $OUT/cache.aa);;
sweep) timeout 280 python3 scratch/bench.py here sweep >> $L/bench.log 2>&1; cat $L/bench.log;;
esac
stamp "stage $1"; cat $L/stages.log
