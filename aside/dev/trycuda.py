"""tryset.py WT OUT JOBS CENSUS SRC... : SRC is DIR/packNN with *.patch; tries each as an alternative. Prints rows."""
import sys, subprocess, pathlib, shutil, json, os, time
wt,out,*srcs=sys.argv[1:]
wt=pathlib.Path(wt); out=pathlib.Path(out); out.mkdir(parents=True,exist_ok=True)
for src in srcs:
    src=pathlib.Path(src); n=next(p for p in src.parts if p.startswith('pack') and p[4:].isdigit())[4:]
    (folder,)=wt.glob(f'packs/{n}_*')
    shutil.rmtree(folder/'alternatives',ignore_errors=True); (folder/'alternatives').mkdir()
    names=[]
    for p in sorted(src.glob('*.patch')):
        t=p.read_text()
        if not t.startswith('Why:'):
            x=p.with_suffix('.txt'); why=(x.read_text().strip().splitlines()[0].lstrip('# ') if x.is_file() else 'none')
            t=f'Why: {why}\n\n{t}'
        (folder/'alternatives'/p.name).write_text(t); names.append(p.stem)
    for m in (folder/'mutants').glob('*.patch'):
        if m.stem in names: m.unlink()
    t0=time.time()
    cmd=[sys.executable,'-m','reproducers.mutate',f'pack{n}','--only','alternatives','--jobs','1','--lane','cuda','--receipts',str(out/'rec')]
    pass
    log=out/f'pack{n}_{src.parent.name if src.name.startswith("pack") else src.name}.log'
    with log.open('w') as kept: done=subprocess.run(cmd,cwd=wt,stdout=kept,stderr=subprocess.STDOUT,env={**os.environ,'OMP_NUM_THREADS':'1'})
    rows=[l for l in log.read_text().splitlines() if l.startswith('[') or 'refused by' in l or 'could not' in l or 'error' in l.lower()]
    print(f'== pack{n} {time.time()-t0:.0f} s rc {done.returncode}',flush=True)
    for r in rows: print('  ',r[:260],flush=True)
    shutil.rmtree(folder/'alternatives')
    subprocess.run(['git','checkout','-q','--','.'],cwd=folder)
