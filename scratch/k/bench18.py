"""Main kernels fo/back_X.py by turns: python3 scratch/k/bench18.py mpr"""
import importlib, importlib.util, sys, types, torch
sys.path.insert(0,"scratch/k/fo")
for n in ("model","model.layers","model.layers.mamba3"):
    sys.modules[n] = types.ModuleType(n); sys.modules[n].__path__ = [n.replace(".", "/")]
sys.modules["model.patched"] = types.ModuleType("model.patched"); sys.modules["model.patched"].seams = None
S = importlib.import_module("model.layers.mamba3.scan"); L = importlib.import_module("model.layers.mamba3.hopper.launches").LAUNCHES
say = lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
def random(*shape, seed): return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
def given(rows,length,heads,groups):
    rank,state,channels,chunk=4,128,64,16
    table=lambda *s,seed: random(heads,rank,*s,seed=seed).float()/10+1
    q,k=[random(rows,length,rank,groups,state,seed=s) for s in (0,1)]
    x,z,above=(random(rows,length,heads,channels,seed=s) for s in (2,3,4))
    decay,dt=(random(rows,heads,length,seed=s).float().abs()/10 for s in (5,6))
    up,down,gate=(table(channels,seed=s) for s in (7,8,9))
    qb,kb=table(state,seed=10),table(state,seed=11); ang=random(rows,length,heads,32,seed=12).float()
    a=S.decay_sums(-decay,chunk)[0]; trap=random(rows,heads,length,seed=13)
    own,later=S.weights(dt,trap.float()); return S.Given(q,k,qb,kb,ang,x,z,above,up,gate,down,a,own,later,16)
def main(v):
    spec=importlib.util.spec_from_file_location("back_"+v,f"scratch/k/fo/back_{v}.py"); m=importlib.util.module_from_spec(spec); sys.modules["back_"+v]=m; spec.loader.exec_module(m)
    return m.run_backward
say(torch.cuda.get_device_name())
runs=[(v,main(v)) for v in sys.argv[1:]]
for shape in ((3,4096,128,8),(2,2048+32,112,8),(4,4096,112,8)):
    G=given(*shape); made=L.states(G); want=None
    for turn in range(3 if shape[1]==4096 else 1):
        for v,f in runs:
            try:
                out=f(G,made); torch.cuda.synchronize()
            except Exception as e: say(v,type(e).__name__,str(e)[:200]); continue
            if want is None: want=[o.clone() for o in out]
            say(shape,v,[timed(lambda: f(G,made)) for _ in range(2)],["%.0e"%((p.double()-r.double()).norm()/r.double().norm()).item() for p,r in zip(out,want)] if turn==0 else "")
