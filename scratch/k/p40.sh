# after install: pack 40 on one H100: run, then mutate and ut beside tests. Transformer Engine is built first (100 s)
export PATCHLANE_HOST=${HOST_ALIAS:-h100-50}; HERE=${HERE:-$PWD}; . scratch/env.sh; cd /tmp/w; cp -r "$HERE"/packs/40* packs/; grep -q "^40:" packs/upstream_tests.yaml || printf "40:\n- path: tests/unit_tests/transformer/test_cuda_graphs.py\n  lanes: [cuda]\n  cuda_needs: [transformer-engine-2.13.0, pydantic-2.14.3]\n" >> packs/upstream_tests.yaml; export PYTHONPATH=${PYTHONPATH%:/tmp/w}:/tmp/w
case $1 in
run) timeout ${2:-150} python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts pack40 > /tmp/logs/run40.log 2>&1; echo "run -> $?"; tail -5 /tmp/logs/run40.log; python3 $HERE/scratch/n/show.py | tail -90; for l in $(ls -t /tmp/receipts/*/*.log | head -2); do echo "== $l"; grep -v "create cuda" $l | tail -${3:-12} | cut -c 1-300; done;;
minimal) for t in $(ls -d /tmp/store/trees/*/megatron /tmp/store/patched/*/megatron | tail -3); do :; done; N=$(ls -d /tmp/store/built/*/transformer_engine | head -1); for t in /tmp/store/trees/*/; do [ -d $t/megatron/core/transformer ] && { echo $t; timeout 60 python3 packs/40*/reproducer.py --minimal --lane cuda --tree $t --needs ${N%/*} 2>&1 | grep -v "create cuda" | tail -3; }; done;;
ablate) timeout ${2:-250} python3 -m reproducers.ablate --offline --lane cuda pack40 > /tmp/logs/ablate40.log 2>&1; echo "ablate -> $?"; tail -40 /tmp/logs/ablate40.log;;
tests) timeout ${2:-200} python3 -m pytest -v -m gpu -p no:cacheprovider -rsf tests/model/journeys/test_gpu_graphs.py > /tmp/logs/gt.log 2>&1; echo "tests -> $?"; tail -12 /tmp/logs/gt.log;;
esac
case $1 in
mutate) timeout ${2:-200} python3 -m reproducers.mutate --lane cuda --jobs 4 --within ${2:-200} --host $PATCHLANE_HOST --receipts /tmp/receipts pack40 > /tmp/logs/mutate40.log 2>&1; echo "mutate -> $?"; tail -40 /tmp/logs/mutate40.log | cut -c 1-220;;
ut) timeout ${2:-250} python3 -m reproducers.upstream_tests --offline --lane cuda --upstream $HERE/scratch/n/clone --receipts /tmp/receipts pack40 > /tmp/logs/ut40.log 2>&1; echo "ut -> $?"; tail -30 /tmp/logs/ut40.log | cut -c 1-220;;
esac
