"""Reduce-scatter of fp32 and all-gather of bf16 as a step has them, by the number of NCCL's blocks."""
import os, torch, torch.distributed as dist
r=int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(r); dist.init_process_group("nccl", device_id=torch.device("cuda", r))
say=lambda *a: r==0 and print(*a, flush=True)
n=2_364_000_000//1024*1024
big=torch.ones(n,device="cuda"); part=torch.empty(n//2,device="cuda"); w=torch.ones(n,device="cuda",dtype=torch.bfloat16); wp=torch.empty(n//2,device="cuda",dtype=torch.bfloat16)
def timed(f):
    f(); torch.cuda.synchronize(); t=[]
    for _ in range(5):
        a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b))
    return round(sorted(t)[2],2)
for name,lo,hi,cga in (("default",None,None,None),("16",16,16,None),("24",24,24,None),("32",32,32,None),("64",64,64,None),("32 cga 2",32,32,2),("default again",None,None,None)):
    try:
        o=dist.ProcessGroupNCCL.Options()
        if lo: o.config.min_ctas, o.config.max_ctas = lo, hi
        if cga: o.config.cga_cluster_size=cga
        g=dist.new_group(pg_options=o)
        s,a=timed(lambda: dist.reduce_scatter_tensor(part,big,group=g)), timed(lambda: dist.all_gather_into_tensor(w,wp,group=g))
        say("nccl",name,"reduce-scatter",s,"ms",round(n*4/2/s/1e6),"GB/s; all-gather",a,"ms",round(n*2/2/a/1e6),"GB/s")
    except Exception as e: say("nccl",name,"failed",str(e)[:150])
dist.destroy_process_group()
