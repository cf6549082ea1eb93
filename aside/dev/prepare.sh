# copies of the checkout for each set, and halves of the wrong sets
mkdir -p /tmp/w/wt /tmp/w/src/a /tmp/w/src/b
for k in $(grep -oE '/tmp/w/wt/[a-z0-9]+' aside/dev/rows | sort -u); do [ -d $k ] || (mkdir -p $k; cp -r packs reproducers *.yaml *.toml $k/ 2>/dev/null; true); done
for s in aside/wrong/pack*; do n=$(basename $s); i=0; mkdir -p /tmp/w/src/a/$n /tmp/w/src/b/$n
 for f in $s/*.patch; do h=a; [ $((i%2)) = 1 ] && h=b; cp $f ${f%.patch}.txt /tmp/w/src/$h/$n/ 2>/dev/null || cp $f /tmp/w/src/$h/$n/; i=$((i+1)); done; done
