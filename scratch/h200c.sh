#!/bin/bash
export PATCHLANE_HOST=h200-36
. scratch/env.sh; cd /tmp/w
ut() { step 500 ut_$1 python3 -m reproducers.upstream_tests --offline --lane cuda --receipts /tmp/receipts $1; }
rm -f /tmp/done?
(ut pack33; touch /tmp/doneA) & (ut pack16; touch /tmp/doneB) & (ut pack05; ut pack17; touch /tmp/doneC) & 
(step 300 siso2 python3 -m model.train nam56r_siso --steps 6 --save-every 0 --out /tmp/runs/siso; gpu 220 gpu2 tests/model/step tests/model/profile tests/model/layers tests/model/journeys/test_gpu_paths.py; touch /tmp/doneD) &
for i in $(seq 265); do [ -f /tmp/doneA -a -f /tmp/doneB -a -f /tmp/doneC -a -f /tmp/doneD ] && break; sleep 2; done
stamp end
cat $L/stages.log
