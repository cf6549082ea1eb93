import sys; s=open("scratch/k/bench13.py").read()
a=s.index("def allf("); only_=int(sys.argv[1]) if len(sys.argv)>1 else None
i=s.index("import fold7"); s2=s[:i]
exec(compile(s2.replace("import fold2\n",""),"b","exec"))
import states2
only=only_
K=importlib.import_module("model.layers.mamba3.kernels"); import triton
def gates(opts,made,grads):
    y,dv=grads[:2]; parts_=rows*length//32
    d_x,d_z=torch.empty_like(x),torch.empty_like(z); of_tables,of_skip=a.new_empty(3,parts_,*up.shape),a.new_empty(parts_,heads)
    o=dict(zip(("HEADS","STAGES","num_warps"),opts))
    f=lambda: K.mimo_gates[heads//o["HEADS"],parts_](x,z,above,up,gate,down,skip,y,dv,d_x,d_z,*of_tables,of_skip,H=heads,R=rank,P=channels,TOKENS=32,**o)
    return f
skip=random(heads,seed=14).float()
jobs=[("gates",o) for o in ((2,3,1),(4,3,2),(2,4,1),(1,4,1),(4,2,2),(2,2,1))]+[("states",r) for r in ((104,96,48),(112,88,48),(96,96,48))]
if only is not None:
    if only>=len(jobs): sys.exit()
    jobs=[jobs[only]]
else: say(torch.cuda.get_device_name())
made=L.states(G); grads=L.backward(G,made) if only is None or jobs[0][0]=="gates" else None
if only is None: say("states as they are",[timed(lambda: L.states(G)) for _ in range(3)],"backward",[timed(lambda: L.backward(G,made)) for _ in range(3)])
for kind,o in jobs:
    try:
        if kind=="gates":
            f=gates(o,made,grads); t=[timed(f) for _ in range(2)]; say(kind,o,t)
        else:
            states2.REGISTERS=o; out=states2.run_states(G)
            say(kind,o,[timed(lambda: states2.run_states(G)) for _ in range(3)],[bool(torch.equal(p,r)) for p,r in zip(out,made)])
    except Exception as e: say(kind,o,type(e).__name__,str(e)[:150])
