"""One GPU, torch and Triton alone: the working tree's kernels for sm_90 against Triton's (and fp64 for the forward pass); errors and times.
From the checkout's root: timeout 100 python3 scratch/k/bench8.py"""
import importlib, importlib.util, sys, types, torch, math
from torch.profiler import profile, ProfilerActivity
for n in ("model","model.layers","model.layers.mamba3"):
    sys.modules[n] = types.ModuleType(n); sys.modules[n].__path__ = [n.replace(".", "/")]
sys.modules["model.patched"] = types.ModuleType("model.patched"); sys.modules["model.patched"].seams = None
S = importlib.import_module("model.layers.mamba3.scan"); L = importlib.import_module("model.layers.mamba3.hopper.launches").LAUNCHES
F = importlib.import_module("model.layers.mamba3.hopper.forward"); ST = importlib.import_module("model.layers.mamba3.hopper.states")
src = open("scratch/k/bench_forward.py").read()
say = lambda *a: print(*a, flush=True)
def timed(f, n=7):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
say(torch.cuda.get_device_name())
low=torch.bfloat16; g=torch.Generator(device="cuda").manual_seed(1)
def rn(*s): return torch.randn(*s,generator=g,device="cuda")
exec(src[src.index("def exact"):src.index("s=given(2,160,28,2)")])
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
def fwd(g):
    above,q,k,x,qb,kb,up,down,z,gate,ang,a,_,dt,trap,skip,_,chunk,*_2=g
    return F.run_forward(q,k,x,qb,kb,up,down,z,skip,gate,ang,a,None,dt,trap,None,chunk_size=chunk,rotary_dim_divisor=4,dtype=torch.bfloat16)[0]
def err(p,q): return ((p.double()-q.double()).norm()/q.double().norm()).item()
for shape in ((3,320,128,8),(1,352,10,2),(2,160,28,2)):
    gi=given(*shape); above,q,k,x,qb,kb,up,down,z,gate,ang,a,_,dt,trap,skip,*_=gi
    own,later=S.weights(dt,trap.float())
    say(shape,"forward","%.2e"%err(fwd(gi),exact(q,k,x,qb,kb,up,down,z,skip,gate,ang,a,own,later,16)))
    want=S.mimo_backward(*gi)
    say(shape,"backward",["%.1e"%err(p,w) for p,w in zip(S.mimo_backward(*gi,by=L),want)])
for rows,heads in ((3,128),(4,112),(1,128)):
    gi=given(rows,4096,heads,8)
    for _ in range(2): say(rows,heads,"forward",timed(lambda: fwd(gi)),"backward",timed(lambda: S.mimo_backward(*gi,by=L)),"triton",timed(lambda: S.mimo_backward(*gi),3))
    with profile(activities=[ProfilerActivity.CUDA]) as p: S.mimo_backward(*gi,by=L); fwd(gi); torch.cuda.synchronize()
    say("  ",[(e.key[:20],e.count,round(e.device_time_total/1e3,3)) for e in sorted(p.key_averages(),key=lambda e:-e.device_time_total)[:9]])
gi=given(3,4096,128,8)
above,q,k,x,qb,kb,up,down,z,gate,ang,a,_,dt,trap,skip,*_=gi
own,later=S.weights(dt,trap.float()); G=S.Given(q,k,qb,kb,ang,x,z,above,up,gate,down,a,own,later,16)
for st in (2,3):
    for regs in ((128,104,56),(144,128,56)):
        ST.STAGES,ST.REGISTERS=st,regs; say("states",st,regs,timed(lambda: L.states(G)))
for regs in ((88,104,64,48),(80,112,64,48),(88,112,56,48),(96,104,64,40)):
    F.REGISTERS=regs; say("forward",regs,timed(lambda: fwd(gi)))
