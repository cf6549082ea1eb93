# A bare clone of Megatron-LM at core_v0.19.0 with the files that upstream's tests need (1.9 MB), to scratch/n/clone; $1: a git directory that has the commit
SHA=5be9626709af2722333bf54797c954c09edeada3; R=$1; rm -rf scratch/n/clone; git init -q --bare scratch/n/clone
( echo $SHA; git -C $R rev-parse $SHA^{tree}; git -C $R ls-tree -r -t $SHA | awk '$2=="tree"{print $3}'; git -C $R ls-tree -r $SHA tests/unit_tests tests/test_utils tests/__init__.py megatron/training megatron/legacy megatron/post_training pyproject.toml pytest.ini setup.py | awk '$2=="blob"{print $3}' ) | sort -u > /tmp/objs
git -C $R pack-objects --stdout < /tmp/objs | git -C scratch/n/clone index-pack --stdin
echo $SHA > scratch/n/clone/HEAD; echo $SHA > scratch/n/clone/shallow
