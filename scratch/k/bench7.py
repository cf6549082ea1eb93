"""One GPU, torch and Triton alone: Mamba-3's backward pass by Triton, by main's Hopper kernels and by three others of
scratch/k: kept (states go through a row, values stored), new (values made in the main kernel too), ring (the next q or k, and the sums' next tokens, by copies into shared memory). Errors and times.
From the checkout's root: timeout 100 python3 scratch/k/bench7.py"""
import importlib.util, sys, types, torch
from torch.profiler import profile, ProfilerActivity
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path); m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m
for n in ("model","model.layers","model.layers.mamba3","model.patched"): sys.modules[n] = types.ModuleType(n)
sys.modules["model.patched"].seams = None
K = load("model.layers.mamba3.kernels", "model/layers/mamba3/kernels.py"); sys.modules["model.layers.mamba3"].kernels = K
ways = {}
for n, at in (("main","model/layers/mamba3"),("kept","scratch/k/kept"),("new","scratch/k/new"),("ring","scratch/k/ring")):
    s = load("model.layers.mamba3.scan", at+"/scan.py"); h = load("model.layers.mamba3.hopper", at+"/hopper.py"); ways[n] = (s, h)
S = ways["main"][0]
say=lambda *a: print(*a, flush=True)
def timed(f, n=7):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
say(torch.cuda.get_device_name())
def random(*shape, seed): return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
def given(rows,length,heads,groups):
    rank,state,channels,chunk=4,128,64,16
    table=lambda *s,seed: random(heads,rank,*s,seed=seed).float()/10+1
    wide=[random(rows,length,rank,groups,state,seed=s) for s in (0,1)]
    x,z,above=(random(rows,length,heads,channels,seed=s) for s in (2,3,4))
    decay,dt=(random(rows,heads,length,seed=s).float().abs()/10 for s in (5,6))
    up,down,gate=(table(channels,seed=s) for s in (7,8,9))
    return (above,*wide,x,table(state,seed=10),table(state,seed=11),up,down,z,gate,random(rows,length,heads,32,seed=12).float(),
        S.decay_sums(-decay,chunk)[0],None,dt,random(rows,heads,length,seed=13),random(heads,seed=14).float(),None,chunk,4,torch.bfloat16)
runs={"triton": lambda g: S.mimo_backward(*g)} | {n: (lambda g,s=s,h=h: s.mimo_backward(*g,by=h.LAUNCHES)) for n,(s,h) in ways.items()}
for shape in ((3,320,128,8),(1,352,10,2)):
    g=given(*shape); want=runs["triton"](g)
    for n in ways: say(shape,n,["%.1e"%((p.float()-q.float()).norm()/q.float().norm()).item() for p,q in zip(runs[n](g),want)])
for rows,heads in ((3,128),(4,112),(1,128)):
    g=given(rows,4096,heads,8)
    for n in (*runs,*runs): say(rows,heads,n,timed(lambda: runs[n](g)))
    for n in runs:
        with profile(activities=[ProfilerActivity.CUDA]) as p: runs[n](g); torch.cuda.synchronize()
        say("  ",n,[(e.key[:20],round(e.device_time_total/1e3,3)) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:6]])
# tokens a program of the sums, and what waits in shared memory
above,q,k,*_=given(3,4096,128,8); turned=random(3,4096,4,128,128,seed=20); angles,bias=torch.rand(3,4096,128,32,device="cuda"),torch.rand(128,4,128,device="cuda")
out,d=torch.empty_like(q),torch.empty_like(angles)
for n,stages in (("main",0),("ring",3),("ring",4),("ring",6)):
    h=ways[n][1]; h.STAGES=stages
    for tokens in (32,64,128):
        part=torch.empty(3*4096//tokens,128,4,128,device="cuda")
        say("fold",n,stages,tokens,timed(lambda: h.run_fold(q,bias,angles,turned,out,part,d,tokens)),timed(lambda: part.sum(0)))
