import sys, torch, types, importlib.util
sys.path.insert(0,'/tmp/w')
from model.layers.m2rnn import triton as T, kernels as new
spec=importlib.util.spec_from_file_location('old_kernels','/tmp/w/scratch/m2rnn_old.py'); old=importlib.util.module_from_spec(spec); spec.loader.exec_module(old)
torch.manual_seed(0); dev='cuda'
def case(Tn,H,K,V,cuts):
    q,k=(torch.randn(Tn,K,device=dev).bfloat16().requires_grad_() for _ in range(2)); v=torch.randn(Tn,H,V,device=dev).bfloat16().requires_grad_()
    f=(-torch.rand(Tn,H,device=dev)*.2).requires_grad_(); W=(torch.randn(H,V,V,device=dev)*.05).bfloat16().requires_grad_()
    return (q,k,v,f,W),torch.tensor(cuts,dtype=torch.int32,device=dev)
def go(mod,args,cu,above):
    T.kernels=mod
    y=T.m2rnn_triton(*args,cu)
    g=torch.autograd.grad(y,args,above)
    return y,g
import itertools
lens=torch.randint(300,1200,(40,)).cumsum(0); cuts=[0]+[int(x) for x in lens if x<12288]+[12288]
args,cu=case(12288,51,64,16,cuts); above=torch.randn(12288,51,16,device=dev).bfloat16()
def timed(mod):
    ts=[]
    T.kernels=mod
    for _ in range(6):
        y=T.m2rnn_triton(*args,cu)
        s,e=torch.cuda.Event(True),torch.cuda.Event(True); torch.cuda.synchronize(); s.record(); torch.autograd.grad(y,args,above); e.record(); torch.cuda.synchronize(); ts.append(s.elapsed_time(e))
    return sorted(ts)[2]
a,b=go(old,args,cu,above),go(new,args,cu,above)
print('equal',torch.equal(a[0],b[0]),[torch.equal(x,y) for x,y in zip(a[1],b[1])])
for r in range(3): print('old %.3f new %.3f ms'%(timed(old),timed(new)))
