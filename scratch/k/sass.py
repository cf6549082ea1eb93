import sys,subprocess,collections,re
sys.path.insert(0,'/work/main'); sys.path.insert(0,'/work/main/tests/kit')
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from model.layers.mamba3 import kernels, scan
SIZES = {"S": 4096, "H": 128, "G": 8, "R": 4, "N": 128, "P": 64, "A": 32, "T": 16, "TOKENS": 32, "HEADS": 16}
SIZES |= {"ADDED": True, "COLUMNS": scan.COLUMNS, "SIZE": 8192, "BLOCK": scan.CARRIED, "AHEAD": 2, "REVERSE": True}
HALVES = ("q", "k", "x", "z", "above", "turned_q", "turned_k", "v", "dy", "states", "slopes", "y", "dv", "d_x", "d_z","d_turned", "d_turned_q", "d_turned_k")
B='/work/main/.venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/'
def compile(kernel, extra={}, options={}, halves=HALVES):
    sizes={o:v for o,v in {**SIZES,**extra}.items() if o in kernel.arg_names}
    names=kernel.arg_names
    kinds={n: ("constexpr" if n in sizes else "*bf16" if n in halves else "i32" if n=="size" else "*fp32") for n in names}
    attrs={(names.index(n),): [["tt.divisibility",16]] for n in names if n not in sizes}
    src=ASTSource(kernel,kinds,{(names.index(n),):v for n,v in sizes.items()},attrs)
    return triton.compile(src,target=GPUTarget("cuda",90,32),options=options)
def stats(made,label,dump=None):
    open('/tmp/k.cubin','wb').write(made.asm['cubin'])
    o=subprocess.run([B+'cuobjdump','--dump-resource-usage','/tmp/k.cubin'],capture_output=True,text=True).stdout
    s=subprocess.run([B+'nvdisasm','-c','/tmp/k.cubin'],capture_output=True,text=True).stdout
    if dump: open(dump,'w').write(s)
    ins=[(int(a,16),b) for a,b in re.findall(r'/\*([0-9a-f]{4,})\*/\s+(.*?);',s)]
    labels={}
    loops=[]
    lines=s.splitlines(); addr=None; pend=[]
    for l in lines:
        m=re.match(r'\.(L_x_\d+):',l)
        if m: pend.append(m.group(1))
        m=re.search(r'/\*([0-9a-f]{4,})\*/\s+(.*?);',l)
        if m:
            for p in pend: labels[p]=int(m.group(1),16)
            pend=[]
    for a,b in ins:
        m=re.search(r'BRA.*?`\(\.(L_x_\d+)\)',b)
        if m and labels.get(m.group(1),1<<60)<a: loops.append((labels[m.group(1)],a,(a-labels[m.group(1)])//16+1))
    ops=collections.Counter(re.sub(r'^@!?U?P\w+\s+','',b).split()[0].split('.')[0] for _,b in ins)
    print(label,re.search(r'REG:\d+ STACK:\d+ SHARED:\d+ LOCAL:\d+',o).group(0),'smem',made.metadata.shared,'ins',len(ins),'loops',loops)
    print('   ',ops.most_common(28))
if __name__=='__main__':
    for n,l in scan.OPTIONS.items():
        k=getattr(kernels,n)
        stats(compile(k,{o:v for o,v in l.items() if o in k.arg_names},{o:v for o,v in l.items() if o not in k.arg_names}),n,f'/tmp/{n}.sass')
