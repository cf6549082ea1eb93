import sys; s=open("scratch/k/bench13.py").read()
a=s.index("def allf("); b=s.index("def main(v)"); c=s.index("jobs=[("); d=s.index("if only is not None:\n    if only>=len")
s=s[:a]+s[b:c]+'jobs=[("main",v,0,0,32) for v in VARIANTS]\n'+s[d:]
VARIANTS=sys.argv[1]; sys.argv=[sys.argv[0]]+sys.argv[2:]
s=s.replace('    F=importlib.import_module("model.layers.mamba3.hopper.fold"); say(torch.cuda.get_device_name())','    say(torch.cuda.get_device_name())')
i=s.index("    ref,refk=new(),new()"); j=s.index("made=L.states(G)")
s=s[:i]+s[j:]
s=s.replace("import fold2\n","").replace("import fold7\n","")
exec(compile(s,"bench15","exec"))
