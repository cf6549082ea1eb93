import torch, time, os, sys
x=torch.randn(8192,8192,device="cuda",dtype=torch.bfloat16); y=torch.empty(16,device="cuda")
def go(n=8000):
    for _ in range(60): x@x   # some 90 ms of work ahead... grows below
    torch.cuda.synchronize()
    for _ in range(400): torch.mm(x,x)
    t=time.perf_counter(); marks=[]
    for i in range(n):
        y.add_(1)
        if i%256==255: marks.append(round((time.perf_counter()-t)*1e3,1))
    torch.cuda.synchronize(); return marks
go(); m=go()
print(os.environ.get("CUDA_SCALE_LAUNCH_QUEUES"), m)
