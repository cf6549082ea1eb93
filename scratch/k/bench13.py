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
import fold7
w=[random(rows,length,rank,heads,state,seed=s) for s in (20,21)]
def new(T=32): return torch.empty_like(q),torch.empty(rows*length//T,*qb.shape,device="cuda"),torch.empty_like(ang)
sizes=dict(H=heads,G=groups,R=rank,N=state,A=32)
def allf(late,which,o1,o2,T):
    fold7.fold_all[groups*(2 if which==2 else 1),rows*length//T](q,k,qb,kb,ang,w[0],w[1],o1[0],o2[0],o1[1],o2[1],o1[2],**sizes,TOKENS=T,HEADS=16,WARPS=4,LATE=late,WHICH=which,num_warps=4)
def main(v):
    spec=importlib.util.spec_from_file_location("back_"+v,f"scratch/k/fo/back_{v}.py"); m=importlib.util.module_from_spec(spec); sys.modules["back_"+v]=m; spec.loader.exec_module(m)
    return m.run_backward
jobs=[("all",late,which,None,T) for late in (False,True) for which in (0,1,2) for T in (32,64)]+[("main",v,0,0,32) for v in "ove"]
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
made=L.states(G); want=None
for kind,late,which,_,T in jobs:
    if kind=="main":
        f=main(late); out=f(G,made)
        if want is None: want=out
        say(kind,late,[timed(lambda: f(G,made)) for _ in range(3 if only is None else 1)],["%.0e"%((p.double()-r.double()).norm()/r.double().norm()).item() for p,r in zip(out,want)] if only is None else 0)
        continue
    o1,o2=new(T),new(T)
    f=lambda: allf(late,which,o1,o2,T)
    t=(timed(f),timed(f))
    if only is None:
        e=[]
        for o,r in ((o1,ref),(o2,refk)):
            for s in {0:((0,32),(64,96)),1:((32,64),(96,128)),2:((0,128),)}[which]:
                s=slice(*s); e.append((o[0][...,s].double()-r[0][...,s].double()).abs().max().item()); e.append((o[1].sum(0)[...,s]-r[1].sum(0)[...,s]).abs().max().item())
        if which!=1: e.append((o1[2]-ref[2]-refk[2]).abs().max().item())
        say(kind,"late" if late else "soon",which,T,t,["%.0e"%x for x in e])
