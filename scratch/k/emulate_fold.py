"""Run scratch/k/hopper.py's kernel with torch in Gluon's place, beside the Triton kernel under the interpreter."""
import os; os.environ["TRITON_INTERPRET"]="1"
import sys, types, torch, re
sys.path.insert(0,'/work/main')
src=open('/work/main/scratch/k/ring/hopper.py').read()
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
gl.SwizzledSharedLayout=lambda *a:None
ac=types.SimpleNamespace(async_copy_global_to_shared=lambda to,x,mask=None: to.store(gl.load(x) if mask is None else gl.load(x,mask=mask,other=0.0).to(to.d.dtype)),commit_group=lambda:None,wait_group=lambda n:None)
ns=dict(async_copy=ac,gluon=types.SimpleNamespace(jit=lambda f:f),gl=gl,tma=tma,mbarrier=mb,fence_async_shared=lambda:None,warpgroup_mma=mma,warpgroup_mma_init=None,warpgroup_mma_wait=lambda n,deps: deps[0] if len(deps)==1 else deps,TensorDescriptor=None)
exec("from __future__ import annotations\n"+src.split("def _rows(x: Tensor")[0],ns)
ns["_sigmoid"]=torch.sigmoid; ns["_turns"]=lambda x:(x.cos(),x.sin())

ns["_exp"]=torch.exp; ns["_sigmoid"]=torch.sigmoid; ns["_turns"]=lambda x:(x.cos(),x.sin())

from model.layers.mamba3 import kernels as K
import itertools
Ptr.dtype=property(lambda s: types.SimpleNamespace(element_ty=s.t.dtype))
gl.store=lambda p,v,mask=None: p.t.view(-1).index_put_((p.o.expand(v.shape)[mask.expand(v.shape)] if mask is not None else p.o.expand(v.shape),), v[mask.expand(v.shape)] if mask is not None else v)
for H,HEADS in ((32,16),(28,16),(10,8)):
    B,S,R,G,N,P,A,T=2,64,4,2,128,64,32,16
    g=torch.Generator().manual_seed(0); r=lambda *s: torch.randn(*s,generator=g)
    low=torch.float16
    x=r(B,S,R,G,N).to(low); d=r(B,S,R,H,N).to(low); b=r(H,R,N); ang=r(B,S,H,A)
    def outs(): return [torch.zeros(B,S,R,G,N,dtype=low),torch.zeros(B*S//32,H,R,N),torch.zeros(B,S,H,A)]
    o1,o2=outs(),outs()
    K.mimo_fold[G*4,B*S//32](x,b,ang,d,*o1,H=H,G=G,R=R,N=N,A=A,TOKENS=32,COLUMNS=16,HEADS=HEADS,STAGES=1)
    for first,cols in ((0,16),(A,32 if HEADS==H//G else 16)):
      for i in range(G*32//cols):
        for j in range(B*S//32):
            pid[:]=[i,torch.tensor(j),0]
            ns["mimo_fold"](*(Ptr(t) for t in (x,b,ang,d,*o2)),H,G,R,N,A,32,first,cols,HEADS,4)
    for n,p,y in zip("d_x d_bias d_angle".split(),o1,o2): print(H,n,((p.float()-y.float()).norm()/p.float().norm()).item())
