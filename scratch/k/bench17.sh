for i in 0 1; do timeout 60 python3 scratch/k/bench17.py nz $i > /tmp/c_$i.log 2>&1 & done; wait
timeout 60 python3 scratch/k/bench17.py nznz
