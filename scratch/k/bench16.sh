for i in $(seq 0 8); do timeout 60 python3 scratch/k/bench16.py $i > /tmp/c_$i.log 2>&1 & done; wait
timeout 60 python3 scratch/k/bench16.py
