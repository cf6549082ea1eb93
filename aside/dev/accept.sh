# accept.sh PACK NAME...: to main, or to n51 for packs whose reproducer changes there
n=$1; shift
case $n in 05|09|10|16|17|33|36|38) t=/tmp/wt/n51;; *) t=/work/main;; esac
d=$(ls -d $t/packs/${n}_*); mkdir -p $d/alternatives
for x in "$@"; do cp /tmp/fresh/pack$n/right/$x.patch $d/alternatives/; done; ls $d/alternatives
