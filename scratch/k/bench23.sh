L=$OUT; for t in d e f; do timeout 80 python3 scratch/k/bench23.py check $t > $L/check_$t.log 2>&1 & done; wait
tail -n 5 $L/check_*.log | cut -c1-230; T=; for t in d e f; do grep -q "$t checked" $L/check_$t.log && T="$T $t"; done
timeout 100 python3 scratch/k/bench23.py time $T > $L/time.log 2>&1; cat $L/time.log
