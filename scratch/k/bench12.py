"""Variants of the sums over heads and of the main kernel's end. From the root: bash scratch/k/bench11.sh"""
import importlib, importlib.util, sys, types, torch
sys.path.insert(0,"scratch/k/fo")
for n in ("model","model.layers","model.layers.mamba3"):
    sys.modules[n] = types.ModuleType(n); sys.modules[n].__path__ = [n.replace(".", "/")]
sys.modules["model.patched"] = types.ModuleType("model.patched"); sys.modules["model.patched"].seams = None
S = importlib.import_module("model.layers.mamba3.scan"); L = importlib.import_module("model.layers.mamba3.hopper.launches").LAUNCHES
import fold2
say = lambda *a: print(*a, flush=True)
def timed(f, n=9):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
only=int(sys.argv[1]) if len(sys.argv)>1 else None
B=1 if only is not None else 3
def random(*shape, seed): return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()
rank,state,channels,chunk,rows,length,heads,groups=4,128,64,16,B,4096,128,8
table=lambda *s,seed: random(heads,rank,*s,seed=seed).float()/10+1
q,k=[random(rows,length,rank,groups,state,seed=s) for s in (0,1)]
x,z,above=(random(rows,length,heads,channels,seed=s) for s in (2,3,4))
decay,dt=(random(rows,heads,length,seed=s).float().abs()/10 for s in (5,6))
up,down,gate=(table(channels,seed=s) for s in (7,8,9))
qb,kb=table(state,seed=10),table(state,seed=11); ang=random(rows,length,heads,32,seed=12).float()
a=S.decay_sums(-decay,chunk)[0]; trap=random(rows,heads,length,seed=13)
own,later=S.weights(dt,trap.float()); G=S.Given(q,k,qb,kb,ang,x,z,above,up,gate,down,a,own,later,16)
import fold5, fold6
w=[random(rows,length,rank,heads,state,seed=s) for s in (20,21)]
def new(T=32): return torch.empty_like(q),torch.empty(rows*length//T,*qb.shape,device="cuda"),torch.empty_like(ang)
sizes=dict(H=heads,G=groups,R=rank,N=state,A=32)
def one(c,nw,first,outs,T=32,t=0):
    fold5.fold_warps[groups*(32//c),rows*length//T]((q,k)[t],(qb,kb)[t],ang,w[t],*outs,**sizes,TOKENS=T,FIRST=first,COLUMNS=c,HEADS=16,WARPS=nw,num_warps=nw)
def pair(c,nw,o1,o2,T=32):
    fold6.fold_pair[groups*(32//c),rows*length//T](q,k,qb,kb,ang,w[0],w[1],o1[0],o2[0],o1[1],o2[1],o1[2],**sizes,TOKENS=T,COLUMNS=c,HEADS=16,WARPS=nw,num_warps=nw)
jobs=[("one",c,nw,first,T) for c,nw in ((16,1),(16,2),(32,2),(32,4)) for first in (0,32) for T in (32,)]+[("one",32,2,0,64),("one",32,1,32,32),("one",32,2,32,64)]+[("pair",c,nw,None,T) for c,nw in ((16,2),(32,4)) for T in (32,64,128)]
if only is not None:
    if only>=len(jobs): sys.exit()
    jobs=[jobs[only]]
    o=new(jobs[0][4]),new(jobs[0][4])
else:
    F=importlib.import_module("model.layers.mamba3.hopper.fold"); say(torch.cuda.get_device_name())
    ref,refk=new(),new()
    run=lambda: (F.run_fold(q,qb,ang,w[0],*ref,32),F.run_fold(k,kb,ang,w[1],*refk,32))
    run(); say("both folds as they are",timed(run),timed(run))
    both_=torch.stack((ref[2],refk[2])); say("d_angles.sum(0)",timed(lambda: both_.sum(0)))
for kind,c,nw,first,T in jobs:
    o1,o2=new(T),new(T)
    f=(lambda: one(c,nw,first,o1,T)) if kind=="one" else (lambda: pair(c,nw,o1,o2,T))
    t=(timed(f),timed(f))
    if only is None:
        a_=first or 0; e=[]
        for o,r in ((o1,ref),)+(((o2,refk),) if kind=="pair" else ()):
            for s in (slice(a_,a_+32),slice(64+a_,96+a_)):
                e.append((o[0][...,s].double()-r[0][...,s].double()).abs().max().item()); e.append((o[1].sum(0)[...,s]-r[1].sum(0)[...,s]).abs().max().item())
        if a_==0: e.append((o1[2]-ref[2]-(refk[2] if kind=="pair" else 0)).abs().max().item())
        say(kind,c,nw,first,T,t,["%.0e"%x for x in e])
