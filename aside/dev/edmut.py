"""edmut.py PACK FILE NAME CAUGHT WHY OLD NEW: a mutant made by an edit of the patched file (path as in fix.patch without a/)."""
import sys, subprocess, tempfile, pathlib, re, shutil
n, file, name, caught, why, old, new = sys.argv[1:]
import os; root=pathlib.Path(os.environ.get('R','/tmp/wt/n51')); (folder,)=root.glob(f'packs/{int(n):02d}_*')
pristine=pathlib.Path(f'/tmp/fresh/trees/pack{int(n):02d}/where').read_text()
sys.path.insert(0,str(root))
from reproducers.record.schema import load_pack
from reproducers.upstream import patching
pack=load_pack(folder); strip=patching.strip_for(pathlib.Path(pristine), pack.upstream.source_root)
with tempfile.TemporaryDirectory() as d:
    d=pathlib.Path(d)
    names=set(re.findall(r'^(?:---|\+\+\+) [ab]/(\S+)', (folder/'fix.patch').read_text(), re.M))
    for x in names:
        src=pathlib.Path(pristine).joinpath(*pathlib.PurePath('a/'+x).parts[strip:])
        if src.is_file():
            (d/x).parent.mkdir(parents=True,exist_ok=True); shutil.copyfile(src,d/x)
    g=lambda *a: subprocess.run(['git','-c','user.name=x','-c','user.email=x@x',*a],cwd=d,check=True,capture_output=True,text=True).stdout
    g('init','-q'); g('add','-A'); g('commit','-qm','p'); g('apply',str(folder/'fix.patch')); g('add','-A'); g('commit','-qm','fix')
    f=d/file; s=f.read_text(); assert s.count(old.encode().decode('unicode_escape'))==1, s.count(old)
    f.write_text(s.replace(old.encode().decode('unicode_escape'),new.encode().decode('unicode_escape')))
    diff=g('diff')
out=folder/'mutants'/f'{name}.patch'; out.write_text(f'Caught-By: {caught}\nWhy: {why}\n\n{diff}'); print(out,len(diff.splitlines()))
