"""mkmut.py PACK WRONG.patch NAME CAUGHT WHY: a mutant (diff of the patched tree) from a wrong fix of the pristine tree."""
import sys, subprocess, tempfile, pathlib, re, shutil
n, wrong, name, caught, why = sys.argv[1:]
import os; root=pathlib.Path(os.environ.get('R','/tmp/wt/n51')); (folder,)=root.glob(f'packs/{int(n):02d}_*')
pristine=pathlib.Path(f'/tmp/fresh/trees/pack{int(n):02d}/where').read_text()
sys.path.insert(0,str(root))
from reproducers.record.schema import load_pack
from reproducers.upstream import patching
pack=load_pack(folder)
strip=patching.strip_for(pathlib.Path(pristine), pack.upstream.source_root)
with tempfile.TemporaryDirectory() as d:
    d=pathlib.Path(d)
    names=set()
    for f in (folder/'fix.patch', pathlib.Path(wrong)):
        names|=set(re.findall(r'^(?:---|\+\+\+) [ab]/(\S+)', f.read_text(), re.M))
    for x in names:
        src=pathlib.Path(pristine).joinpath(*pathlib.PurePath('a/'+x).parts[strip:])
        if src.is_file():
            (d/x).parent.mkdir(parents=True,exist_ok=True); shutil.copyfile(src,d/x)
    g=lambda *a: subprocess.run(['git','-c','user.name=x','-c','user.email=x@x',*a],cwd=d,check=True,capture_output=True,text=True).stdout
    g('init','-q'); g('add','-A'); g('commit','-qm','p')
    g('apply',str(folder/'fix.patch')); g('add','-A'); g('commit','-qm','fix')
    g('checkout','-q','HEAD~1','-b','w'); 
    r=subprocess.run(['patch','-p1','-s','-i',wrong],cwd=d); assert r.returncode==0
    g('add','-A'); g('commit','-qm','w')
    diff=g('diff','master','w') if 'master' in g('branch') else g('diff','main','w')
out=folder/'mutants'/f'{name}.patch'
out.write_text(f'Caught-By: {caught}\nWhy: {why}\n\n{diff}')
print(out, len(diff.splitlines()))
