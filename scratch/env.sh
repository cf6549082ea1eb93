HERE=$PWD; cd /tmp/w 2>/dev/null
export PATCHLANE_STORE=/tmp/store PATCHLANE_OFFLINE=1 PYTHONPYCACHEPREFIX=/tmp/pyc PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE
export PYTHONPATH=$(sed -n "s/^ *export PYTHONPATH=//p" /tmp/install.log):/tmp/w
L=/tmp/logs; mkdir -p $L
[ -f /tmp/t0 ] || date +%s > /tmp/t0
stamp() { echo "$(( $(date +%s) - $(cat /tmp/t0) )) s: $*" >> $L/stages.log; }
step() { local limit=$1 name=$2; shift 2; timeout $limit "$@" >> $L/$name.log 2>&1; stamp "$name -> $?"; }
run() { step 300 packs python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts "$@"; }
ut() { step 300 ut_$1 python3 -m reproducers.upstream_tests --offline --lane cuda --receipts /tmp/receipts $1; }
gpu() { local limit=$1 name=$2; shift 2; step $limit $name python3 -m pytest -q -m gpu -p no:cacheprovider -p no:xdist "$@"; }
install() { cd "$HERE"; mkdir -p /tmp/w; cp -r . /tmp/w; (cd /tmp/w; PATCHLANE_STORE=/tmp/store python3 -m reproducers.bundle install /tmp/b/*.part* > /tmp/install.log 2>&1; echo "install $?")
  # upstream's tests run in children that lose PYTHONPATH
  sed -n 's/^ *export PYTHONPATH=//p' /tmp/install.log | tr : '\n' > /opt/torch/.venv/lib/python3.12/site-packages/engine.pth; }
