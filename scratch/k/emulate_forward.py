"""Run scratch/k/hopper.py's kernel with torch in Gluon's place, beside the Triton kernel under the interpreter."""
import os; os.environ["TRITON_INTERPRET"]="1"
import sys, types, torch, re
sys.path.insert(0,'/work/main')
src=open('/work/main/scratch/k/forward/hopper.py').read()
src=src[src.index("@gluon.jit"):].replace('# type: ignore[untyped-decorator]','')
class Ptr:
    def __init__(s,t,o=0): s.t,s.o=t,o
    def __add__(s,x): return Ptr(s.t,s.o+x)
    def __sub__(s,x): return Ptr(s.t,s.o-x)
class Sm:
    def __init__(s,d): s.d=d
    def load(s,l): return s.d.clone()
    def store(s,v): assert v.shape==s.d.shape and v.dtype==s.d.dtype,(v.shape,s.d.shape,v.dtype); s.d.copy_(v)
    dtype=property(lambda s:s.d.dtype)
    def permute(s,o): return Sm(s.d.permute(*o))
    def index(s,i): return Sm(s.d[i])
    def _reinterpret(s,dt,shape,l):
        if len(shape)==3 and s.d.dim()==2 and s.d.shape[1]==2*shape[2] and s.d.shape[0]==shape[1]:
            return Panels(s.d,shape[2])
        return Sm(s.d.reshape(*shape)) if False else Flat(s.d,shape)
class Panels:
    def __init__(s,d,w): s.d,s.w=d,w
    def index(s,i): return Sm(s.d[:,i*s.w:(i+1)*s.w])
class Flat(Sm):
    def __init__(s,d,shape): s.d=d.view(*shape)
class Desc:
    def __init__(s,t,rows,states=False):
        s.x=t.view(-1,t.shape[-1]) if states else t.view(-1,t.shape[-2]*t.shape[-1]); s.block=(t.shape[-2],t.shape[-1]) if states else (rows,t.shape[-1]); s.dtype=t.dtype; s.layout=None
    def tile(s,c): return s.x[c[0]:c[0]+s.block[0], c[1]:c[1]+s.block[1]]
pid=[0,0,0]
T_=lambda x: x if isinstance(x,torch.Tensor) else torch.tensor(x)
gl=types.SimpleNamespace(tensor=object,constexpr=object,float32=torch.float32,bfloat16=torch.bfloat16,int64=torch.int64,
 NVMMADistributedLayout=lambda *a:None,DotOperandLayout=lambda **k:None,SliceLayout=lambda *a:None,BlockedLayout=lambda *a:None,NVMMASharedLayout=None,
 static_assert=lambda c: None,program_id=lambda i:pid[i],
 where=lambda c,a,b: (a if c else b) if isinstance(c,bool) else torch.where(c,T_(a),T_(b)),
 allocate_shared_memory=lambda dt,shape,l: Sm(torch.full(shape,float('nan'),dtype=dt) if dt.is_floating_point else torch.zeros(shape,dtype=dt)),
 arange=lambda a,b,l: torch.arange(a,b), load=lambda p,mask=None,other=None: (p.t.reshape(-1)[p.o] if mask is None else torch.where(mask,p.t.reshape(-1)[torch.where(mask,p.o,0)],torch.tensor(other))), sum=lambda x,axis: x.sum(axis), reshape=lambda x,s: x.reshape(*s),
 convert_layout=lambda x,l: x, full=lambda s,v,d,l: torch.full(s,v,dtype=d))
def store(p,v): p.t.view(-1)[p.o]=v
gl.store=store; gl.thread_barrier=lambda:None; gl.minimum=min; gl.join=lambda a,b: torch.stack((a,b),-1); gl.permute=lambda x,o: x.permute(*o); gl.static_range=range
def mma(a,b,acc,use_acc=True,is_async=False):
    A=a.d if isinstance(a,Sm) else a; B=b.d
    assert acc.shape==(A.shape[0],B.shape[1]) and A.dtype==B.dtype
    out=A.float()@B.float(); return acc+out if use_acc else out
tma=types.SimpleNamespace(async_copy_global_to_shared=lambda d,c,bar,s: s.store(d.tile(c).clone()), async_copy_shared_to_global=lambda d,c,s: d.tile(c).copy_(s.d), store_wait=lambda n:None)
mb=types.SimpleNamespace(init=lambda *a,**k:None,expect=lambda *a:None,wait=lambda *a:None,invalidate=lambda *a:None,MBarrierLayout=lambda:None)
gl.SwizzledSharedLayout=lambda *a:None; gl.split=lambda x:(x[...,0],x[...,1])
ns=dict(async_copy=None,gluon=types.SimpleNamespace(jit=lambda f:f),gl=gl,tma=tma,mbarrier=mb,fence_async_shared=lambda:None,warpgroup_mma=mma,warpgroup_mma_init=None,warpgroup_mma_wait=lambda n,deps: deps[0] if len(deps)==1 else deps,TensorDescriptor=None)
exec("from __future__ import annotations\n"+src.split("def _rows(x: Tensor")[0],ns)
ns["_sigmoid"]=torch.sigmoid; ns["_turns"]=lambda x:(x.cos(),x.sin())

ns["_exp"]=torch.exp; ns["_sigmoid"]=torch.sigmoid; ns["_turns"]=lambda x:(x.cos(),x.sin())

from model.layers.mamba3 import kernels as K
import math
from model.layers.mamba3 import scan
from model.layers.mamba3.reference import mamba3_mimo_reference
class Y:
    def __init__(s,n,m): s.d=torch.zeros(n,m)
    def store(s,v): s.d=v.clone()
    def load(s,l): return s.d.clone()
old=Sm._reinterpret
def rein(s,dt,shape,l):
    if dt==torch.float32: return Y(*shape)
    return Panels(s.d,shape[2])
Sm._reinterpret=rein
Panels.dtype=property(lambda s:s.d.dtype)
Ptr.dtype=property(lambda s: types.SimpleNamespace(element_ty=s.t.dtype))
gl.NVMMASharedLayout=types.SimpleNamespace(get_default_for=lambda *a:None)
gl.store=lambda p,v: p.t.view(-1).index_put_((p.o,),v)
B,S,R,G,H,N,P,A,T=2,128,4,2,6,128,64,32,16
g=torch.Generator().manual_seed(0); r=lambda *s: torch.randn(*s,generator=g)
low=torch.float16
f={"Q":r(B,S,R,G,N).mul(.3).to(low),"K":r(B,S,R,G,N).mul(.3).to(low),"V":r(B,S,H,P).to(low),"Z":r(B,S,H,P).to(low),"ADT":-0.3*r(B,H,S).abs(),"DT":r(B,H,S).abs(),"Trap":r(B,H,S),"Q_bias":r(H,R,N).mul(.3),"K_bias":r(H,R,N).mul(.3),"MIMO_V":r(H,R,P),"MIMO_Z":r(H,R,P),"MIMO_Out":r(H,R,P),"Angles":r(B,S,H,A),"D":r(H)}
want=mamba3_mimo_reference(**{k:v.double() for k,v in f.items()},chunk_size=T,rotary_dim_divisor=4,dtype=torch.float64)
summed=(math.pi*f["Angles"].tanh()*f["DT"].transpose(1,2).unsqueeze(-1)).cumsum(1).contiguous()
a,_,_=scan.decay_sums(f["ADT"],T); own,later=scan._weights(f["DT"],f["Trap"])
out=torch.zeros(B,S,H,P,dtype=low)
class D2:
    def __init__(s,x,block): s.x,s.block,s.dtype,s.layout=x,block,x.dtype,None
    def tile(s,c): return s.x[c[0]:c[0]+s.block[0],c[1]:c[1]+s.block[1]]
ds=[D2(f[n].view(-1,G*N),(T*R,N//2)) for n in "QK"]
for i in range(H):
    for l in range(B):
        pid[:]=[i,l,0]
        ns["mimo_forward"](*ds,*(Ptr(t.contiguous()) for t in (f["Q_bias"],f["K_bias"],summed,f["V"],f["Z"],f["MIMO_V"],f["MIMO_Z"],f["MIMO_Out"],f["D"],a,own,later)),Ptr(out),S,H,G,R,N,P,A,T)
print(((out.double()-want).norm()/want.norm()).item(), want.shape)
