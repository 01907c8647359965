export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NEPTUNE_CACHE_DIR=/tmp/nc
mkdir -p $OUT /tmp/w
python3 -m pytest tests/gpu --collect-only -q -p no:cacheprovider 2>/dev/null | grep :: > /tmp/w/ids
(cd /tmp/w && shuf --random-source=<(yes) ids > mixed && split -n r/14 mixed part.)
ls /tmp/w/part.* | xargs -P 14 -I{} sh -c 'timeout 400 xargs -d "\n" -a {} python3 -m pytest -q -p no:cacheprovider > {}.log 2>&1' &
names=$(python3 -c "
from bench.chains import CHAINS
print(' '.join(c.name for c in CHAINS))")
echo $names | tr ' ' '\n' > /tmp/w/names; (cd /tmp/w && split -n r/5 names names.)
for f in /tmp/w/names.a?; do b=$(basename $f); timeout 400 python3 -m bench.chains --targets cuda --only $(cat $f) --json $OUT/chains-$b.json > $OUT/chains-$b.txt 2>&1 & done
wait
cat /tmp/w/part.*.log | grep -E "^(FAILED|ERROR)" | cut -c1-200 | head -30
cat /tmp/w/part.*.log | grep -E "passed|failed" | grep -v FAILED
tail -n 3 $OUT/chains-*.txt | cut -c1-160
cat /tmp/w/part.*.log | grep -E "^E  " | cut -c1-200 | head -40 
