# On the device, in the checkout: bash dev/install.sh PARTS_FOLDER... ; leaves /tmp/w/env to source.
set -e
mkdir -p /tmp/w/store
cat > /tmp/w/env <<X
export PATCHLANE_STORE=/tmp/w/store PATCHLANE_HOST=${HOST_ALIAS:-h200-68} PATCHLANE_OFFLINE=1 OMP_NUM_THREADS=1 TMPDIR=/tmp
X
. /tmp/w/env
python3 -m reproducers.bundle install "$@" > /tmp/w/install.log 2>&1 || { tail -20 /tmp/w/install.log; exit 1; }
grep -o 'export PYTHONPATH=.*' /tmp/w/install.log >> /tmp/w/env || true
tail -3 /tmp/w/install.log
