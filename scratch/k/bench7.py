"""One GPU: model/layers/mamba3/hopper.py beside Triton's kernels: errors and times of the whole backward pass."""
import importlib.util, sys, types, torch
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path); m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m
for n in ("model","model.layers","model.layers.mamba3","model.patched"): sys.modules[n] = types.ModuleType(n)
sys.modules["model.patched"].seams = None
K = load("model.layers.mamba3.kernels", "model/layers/mamba3/kernels.py"); sys.modules["model.layers.mamba3"].kernels = K
S = load("model.layers.mamba3.scan", "model/layers/mamba3/scan.py"); hopper = load("model.layers.mamba3.hopper", "model/layers/mamba3/hopper.py")
say=lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
say(torch.cuda.get_device_name())
def random(*shape, seed): return torch.randn(shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
def given(rows,length,heads,groups):
    rank,state,channels,chunk=4,128,64,16
    table=lambda *s,seed: random(heads,rank,*s,seed=seed).float()/10+1
    wide=[random(rows,length,rank,groups,state,seed=s) for s in (0,1)]
    x,z,above=(random(rows,length,heads,channels,seed=s) for s in (2,3,4))
    decay,dt=(random(rows,heads,length,seed=s).float().abs()/10 for s in (5,6))
    up,down,gate=(table(channels,seed=s) for s in (7,8,9))
    return (above,*wide,x,table(state,seed=10),table(state,seed=11),up,down,z,gate,random(rows,length,heads,32,seed=12).float(),
        S.decay_sums(-decay,chunk)[0],None,dt,random(rows,heads,length,seed=13),random(heads,seed=14).float(),None,chunk,4,torch.bfloat16)
for rows,length,heads,groups in ((3,320,128,8),(1,352,10,2)):
    a,b=(S.mimo_backward(*given(rows,length,heads,groups),by=by) for by in (hopper.LAUNCHES,S.TRITON))
    say(rows,length,heads,groups,["%.1e"%((p.float()-q.float()).norm()/q.float().norm()).item() for p,q in zip(a,b)])
g=given(3,4096,128,8)
for _ in range(2):
    for n,by in (("triton",S.TRITON),("hopper",hopper.LAUNCHES)): say(n,timed(lambda: S.mimo_backward(*g,by=by),5))
from torch.profiler import profile, ProfilerActivity
for rows,heads in ((3,128),(4,112),(1,128)):
    g=given(rows,4096,heads,8)
    for n,by in (("hopper",hopper.LAUNCHES),):
        S.mimo_backward(*g,by=by); torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p: S.mimo_backward(*g,by=by); torch.cuda.synchronize()
        say(rows,heads,n,[(e.key[:20],round(e.device_time_total/1e3,3),e.count) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:6]])
