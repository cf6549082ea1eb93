"""queue.py ROWS SECONDS [SLOTS]: rows `gpu|alone|cpu THREADS SECONDS NAME COMMAND...`, begun in order; GPU rows SLOTS a GPU (1),
`alone` ones with no other GPU row on their GPU, CPU rows as cores allow.

Logs in /tmp/w/logs/NAME.log; state in /tmp/w/queue.json, so that a later call goes on with what did not end.
"""
import json, os, shlex, signal, subprocess, sys, time, pathlib
rows=[line.split(None,4) for line in open(sys.argv[1]) if line.strip() and not line.startswith('#')]
end=time.time()+float(sys.argv[2]); state=pathlib.Path('/tmp/w/queue.json'); logs=pathlib.Path('/tmp/w/logs'); logs.mkdir(parents=True,exist_ok=True)
done=json.loads(state.read_text()) if state.exists() else {}
try: gpus=len(subprocess.run(['nvidia-smi','-L'],capture_output=True,text=True).stdout.strip().splitlines())
except OSError: gpus=0
slots=int(sys.argv[3]) if len(sys.argv)>3 else 1
which=[int(g) for g in os.environ.get('QUEUE_GPUS','').split(',') if g] or list(range(gpus))
cores=int(os.environ.get('QUEUE_CORES',os.cpu_count())); free=[g for _ in range(slots) for g in which]; whole={}; busy=0; live={}
todo=[r for r in rows if r[3] not in done]
def start(kind,threads,name,command,gpu):
    env={**os.environ,'OMP_NUM_THREADS':threads}
    if gpu is not None: env['CUDA_VISIBLE_DEVICES']=str(gpu)
    log=open(logs/f'{name}.log','w')
    p=subprocess.Popen(['bash','-c',command],stdout=log,stderr=subprocess.STDOUT,env=env,start_new_session=True)
    live[p]=(name,int(threads),gpu,time.time())
while (live or any(time.time()+float(r[2])<=end for r in todo)) and time.time()<end:
    for p in list(live):
        if p.poll() is not None:
            name,t,g,b=live.pop(p); busy-=t
            if g is not None: free+=[g]*whole.pop(name,1)
            done[name]=[p.returncode,round(time.time()-b)]; state.write_text(json.dumps(done)); print(name,*done[name],flush=True)
    for r in list(todo):
        kind,threads,est,name,command=r; t=int(threads)
        if time.time()+float(est)>end: continue
        if busy+t>cores: continue
        gpu=None
        if kind=='gpu':
            if not free: continue
            gpu=free.pop(0)
        if kind=='alone':
            gpu=next((g for g in which if free.count(g)==slots),None)
            if gpu is None: continue
            free=[g for g in free if g!=gpu]; whole[name]=slots
        todo.remove(r); busy+=t; start(kind,threads,name,command,gpu)
    time.sleep(0.5)
for p,(name,*_) in live.items():
    os.killpg(p.pid,signal.SIGTERM); print('cut',name)
print('left',[r[3] for r in todo])
