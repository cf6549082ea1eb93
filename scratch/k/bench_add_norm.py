"""One GPU: residual sum and norm forward, by torch and Transformer Engine, and by Liger's one kernel; the out-projection's product with and without the residual in it. 12,288 x 4,096 bf16."""
import torch
from reproducers.probe.lanes.transformer_engine import import_transformer_engine
import_transformer_engine("cuda")
import transformer_engine_torch as tex
from transformer_engine.pytorch.constants import TE_DType
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
def timed(f, n=25):
    for _ in range(3): f()
    t=[]
    for _ in range(n):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[n//2],4)
x,r=(torch.randn(12288,4096,device="cuda",dtype=torch.bfloat16) for _ in range(2)); w=torch.rand(4096,device="cuda",dtype=torch.bfloat16)
norm=lambda s: tex.rmsnorm_fwd(s,w,1e-5,None,None,TE_DType[s.dtype],0,False)
print(torch.cuda.get_device_name())
s=x+r; y=norm(s)[0]; Y,S,*_=fused_add_rms_norm_forward(x,r,w,1e-5,0.0,"gemma")
print("equal sums",torch.equal(s,S),"norms differ",((y-Y).float().norm()/y.float().norm()).item())
for _ in range(2):
    print("add",timed(lambda: x+r),"norm",timed(lambda: norm(x)),"both",timed(lambda: norm(x+r)),"liger",timed(lambda: fused_add_rms_norm_forward(x,r,w,1e-5,0.0,"gemma")))
for k in (8192,4096,2048):
    h=torch.randn(12288,k,device="cuda",dtype=torch.bfloat16); W=torch.randn(4096,k,device="cuda",dtype=torch.bfloat16)
    print(k,"product, sum",timed(lambda: h@W.t()+r),"product",timed(lambda: h@W.t()),"product with the residual",timed(lambda: torch.addmm(r,h,W.t())))
