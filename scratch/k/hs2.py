import sys; sys.path[:0]=["/tmp","/work/main/scratch/k"]
import hs, sass, triton, compiled
real=triton.compile
n=[0]
def comp(*a,**k):
    m=real(*a,**k); n[0]+=1; sass.stats(m,f"#{n[0]}",f"/tmp/n{n[0]}.sass"); return m
compiled.triton.compile=comp
hs.go(int(sys.argv[1]) if len(sys.argv)>1 else 128)
