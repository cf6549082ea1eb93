L=$OUT; for t in a b c d; do timeout 80 python3 scratch/k/bench22.py check $t > $L/check_$t.log 2>&1 & done; wait
tail -n 6 $L/check_*.log; T=; for t in a b c d; do grep -q "$t checked" $L/check_$t.log && T="$T $t"; done
timeout 70 python3 scratch/k/bench22.py time $T > $L/time.log 2>&1; cat $L/time.log
