n=${N:-15}
for i in $(seq 0 $((n-1))); do timeout 80 python3 scratch/k/bench13.py $i > /tmp/c_$i.log 2>&1 & done; wait
timeout 100 python3 scratch/k/bench13.py
