import sys, time
sys.path.insert(0,'.')  # PYTHONPATH: nothing but torch and triton is needed
import torch, triton
from model.layers.mamba3 import kernels, scan
from model.layers.mamba3.reference import mamba3_mimo_reference
dev='cuda'; C=16
def make(B,S,R,G,H,N,P,DIV,low=torch.bfloat16):
    g=torch.Generator(device=dev).manual_seed(1)
    rn=lambda *s: torch.randn(*s,generator=g,device=dev)
    d=dict(Q=rn(B,S,R,G,N),K=rn(B,S,R,G,N),V=rn(B,S,H,P),Z=rn(B,S,H,P),ADT=-rn(B,H,S).abs()*.05,DT=rn(B,H,S).abs()*.1,Trap=rn(B,H,S),Q_bias=1+.1*rn(H,R,N),K_bias=1+.1*rn(H,R,N),MIMO_V=.25+.1*rn(H,R,P),MIMO_Z=1+.1*rn(H,R,P),MIMO_Out=.25+.1*rn(H,R,P),Angles=rn(B,S,H,N//DIV),D=1+.1*rn(H))
    d['ADT'][:,:,0]=-40; d['ADT'][:,:,77]=-40
    for n in 'QKVZ': d[n]=d[n].to(low)
    return d
def err(a,b): return ((a.double()-b.double()).norm()/b.double().norm()).item()
def prepared(d):
    theta=(torch.pi*d['Angles'].tanh()*d['DT'].transpose(1,2).unsqueeze(-1)).cumsum(1)
    a=d['ADT'].detach().unflatten(2,(-1,C)).cumsum(-1).flatten(2).contiguous()
    return theta,a
def back(d,theta,a,above):
    with torch.no_grad(): return scan.mimo_backward(above,d['Q'],d['K'],d['V'],d['Q_bias'],d['K_bias'],d['MIMO_V'],d['MIMO_Out'],d['Z'],d['MIMO_Z'],theta,a,None,d['DT'],d['Trap'],d['D'],None,C,4,torch.bfloat16)
names='Q K V ADT DT Trap Q_bias K_bias MIMO_V MIMO_Z MIMO_Out theta D Z'.split()
def check():
    d={n:t.requires_grad_() for n,t in make(2,256,4,2,8,128,64,4).items()}
    f={n:t.detach().double().requires_grad_() for n,t in d.items()}
    want=mamba3_mimo_reference(**f,chunk_size=16,rotary_dim_divisor=4,dtype=torch.float64)
    above=torch.randn(want.shape,device=dev).bfloat16()
    gw=dict(zip(f,torch.autograd.grad(want,list(f.values()),above.double())))
    theta,a=prepared(d)
    got=dict(zip(names,back(d,theta.detach(),a,above)))
    dang,ddt=torch.autograd.grad(theta,(d['Angles'],d['DT']),got.pop('theta')); got['Angles']=dang; got['DT']=got['DT']+ddt
    print('check',*('%s %.1e'%(n,err(g,gw[n])) for n,g in got.items()),flush=True)
def bench(f,n=5):
    f(); torch.cuda.synchronize()
    ts=[]
    for _ in range(n):
        s,e=torch.cuda.Event(True),torch.cuda.Event(True); s.record(); f(); e.record(); torch.cuda.synchronize(); ts.append(s.elapsed_time(e))
    return sorted(ts)[n//2]
def tries(name,f,options):
    for o in options:
        t0=time.time()
        try: ms=bench(lambda: f(**o))
        except Exception as e: print(name,o,type(e).__name__,str(e)[:200].replace('\n',' '),flush=True); torch.cuda.synchronize(); continue
        h=last[0]
        print(name,o,'%.3f ms'%ms,'regs',getattr(h,'n_regs','?'),'spills',getattr(h,'n_spills','?'),'shared',getattr(getattr(h,'metadata',None),'shared','?'),'in %.0f s'%(time.time()-t0),flush=True)
last=[None]
BACK=[dict(num_warps=4),dict(num_warps=8)]
B,S,R,G,H,N,P,A=3,4096,4,8,128,128,64,32
d=make(B,S,R,G,H,N,P,4)
theta,a=prepared(d); above=torch.randn_like(d['V'])
import importlib.util
def mod(n):
    spec=importlib.util.spec_from_file_location(n,'scratch/%s.py'%n); m=importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
base,v5=mod('k_base'),mod('k_v5')
own=(d['DT']*d['Trap'].sigmoid()).contiguous(); later=own.clone()
q,k,x,z=d['Q'],d['K'],d['V'],d['Z']; qb,kb,up,gate,down,skip=(d[n].contiguous() for n in ('Q_bias','K_bias','MIMO_V','MIMO_Z','MIMO_Out','D'))
cos,sin=theta.cos(),theta.sin()
turning=dict(H=H,G=G,R=R,N=N,A=A); sizes=dict(S=S,H=H,R=R,N=N,P=P,T=C)
tq,tk=(q.new_empty(B,S,R,H,N) for _ in range(2)); v,dy=(q.new_empty(B,S,R,H,P) for _ in range(2))
states,slopes=(q.new_empty(B,S//C//2,H,N,P) for _ in range(2)); HP=triton.next_power_of_2(H//G)
def f(T,C_,st,w): last[0]=base.mimo_rotate[G*(N//2//C_),R,B*S//T](q,qb,cos,sin,tq,num_warps=w,TOKENS=T,COLUMNS=C_,HEADS=HP,STAGES=st,**turning)
tries('rotate',f,[dict(T=16,C_=32,st=1,w=1),dict(T=16,C_=32,st=2,w=1),dict(T=16,C_=32,st=3,w=1),dict(T=16,C_=16,st=3,w=1),dict(T=32,C_=32,st=4,w=1)])
want=tq.clone()
narrow=dict(H=H,R=R,P=P)
def f(T,h,st): last[0]=base.mimo_expand[H//h,B*S//T](x,z,above,up,gate,down,v,dy,TOKENS=T,HEADS=h,STAGES=st,num_warps=1,**narrow)
tries('expand',f,[dict(T=16,h=4,st=1),dict(T=16,h=4,st=2),dict(T=16,h=4,st=3)])
def f(**o): last[0]=v5.mimo_states[H,S//C//2,2*B](q,k,qb,kb,cos,sin,x,z,above,up,gate,down,a,later,tq,tk,v,dy,states,slopes,**o,**(sizes|turning))
tries('states',f,[dict(num_warps=8,STAGES=1,maxnreg=128),dict(num_warps=8,STAGES=2,maxnreg=128),dict(num_warps=8,STAGES=2),dict(num_warps=4,STAGES=2),dict(num_warps=4,STAGES=1)])
print('turned', (want.float()-tq.float()).norm()/want.float().norm())
dtq,dtk=torch.empty_like(tq),torch.empty_like(tk)
dth=torch.empty(R,*theta.shape,device=dev); dq=torch.empty_like(q)
def f(T,C_,st,w):
    p=torch.empty(B*S//T,*qb.shape,device=dev)
    last[0]=base.mimo_fold[G*(N//2//C_),R,B*S//T](q,qb,cos,sin,tq,dq,p,dth,num_warps=w,TOKENS=T,COLUMNS=C_,HEADS=HP,STAGES=st,**turning)
tries('fold by rank',f,[dict(T=16,C_=32,st=1,w=1),dict(T=16,C_=32,st=2,w=1),dict(T=16,C_=32,st=3,w=1),dict(T=16,C_=16,st=3,w=1),dict(T=32,C_=32,st=3,w=1)])
def f(T,C_,st,w,**o):
    p=torch.empty(B*S//T,*qb.shape,device=dev)
    last[0]=kernels.mimo_fold[G*(N//2//C_),B*S//T](q,qb,cos,sin,tq,dq,p,dth,num_warps=w,TOKENS=T,COLUMNS=C_,HEADS=HP,STAGES=st,**o,**turning)
tries('fold',f,[dict(T=16,C_=8,st=2,w=1),dict(T=16,C_=8,st=4,w=1),dict(T=32,C_=8,st=3,w=1),dict(T=16,C_=16,st=2,w=1),dict(T=16,C_=16,st=4,w=1),dict(T=32,C_=16,st=3,w=1)])
print('sum of angles', bench(lambda: dth.sum(0)))
