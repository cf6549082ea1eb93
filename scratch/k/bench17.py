import sys; s=open("scratch/k/bench13.py").read()
a=s.index("def allf("); b=s.index("def main(v)"); c=s.index("jobs=[("); d=s.index("if only is not None:\n    if only>=len")
s=s[:a]+s[b:c]+'jobs=[("main",v,0,0,32) for v in VARIANTS]\n'+s[d:]
VARIANTS=sys.argv[1]; sys.argv=[sys.argv[0]]+sys.argv[2:]
s=s.replace('    F=importlib.import_module("model.layers.mamba3.hopper.fold"); say(torch.cuda.get_device_name())','    say(torch.cuda.get_device_name())')
i=s.index("    ref,refk=new(),new()"); j=s.index("made=L.states(G)")
s=s[:i]+s[j:]
s=s.replace("import fold2\n","").replace("import fold7\n","")
exec(compile(s,"bench17","exec"))
if only is None:
    import fwd_k
    F=importlib.import_module("model.layers.mamba3.hopper.forward"); skip=random(heads,seed=14).float()
    def run(m): return m.run_forward(q,k,x,qb,kb,up,down,z,skip,gate,ang,a,None,dt,trap,None,chunk_size=chunk,rotary_dim_divisor=4,dtype=torch.bfloat16)
    want=run(F); got=run(fwd_k); say("forward same",bool(torch.equal(want[0],got[0])), "kept y against backward's","%.1e"%((got[1].double()-L.backward(G,made)[0].double()).norm()/got[1].double().norm()).item())
    for m in (F,fwd_k,F,fwd_k): say(m.__name__[-8:],[timed(lambda: run(m)) for _ in range(2)])
    for r in ((88,104,72,40),(80,104,80,40)):
        fwd_k.REGISTERS=r; say("kept",r,[timed(lambda: run(fwd_k)) for _ in range(2)])

