for i in $(seq 0 $((${#1}-1))); do timeout 80 python3 scratch/k/bench15.py $1 $i > /tmp/c_$i.log 2>&1 & done; wait
timeout 100 python3 scratch/k/bench15.py $1
