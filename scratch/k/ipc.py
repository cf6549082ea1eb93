
import torch, triton, time
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
@gluon.jit
def spin(out, n, BODY: gl.constexpr, W: gl.constexpr, KIND: gl.constexpr):
    lay: gl.constexpr = gl.BlockedLayout([8], [32], [W], [0])
    x = gl.arange(0, 256 * W, lay).to(gl.float32)
    for i in range(n):
        for j in gl.static_range(BODY):
            if KIND == 0:
                x = x * 0.999 + (j * 0.001 + 0.5)
            else:
                x = gl.inline_asm_elementwise("mul.f32 $0, $1, 0f3F7FBE77;", "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1)
    gl.store(out + gl.program_id(0) * 256 * W + gl.arange(0, 256 * W, lay), x)
def main():
    out = torch.empty(132*8*256*16, device="cuda")
    for ctas in (1,2,4):
        for W in (4,8,16):
            for body in (32,64,128,256,512,1024):
                n = 16384//body
                f = lambda: spin[(132*ctas,)](out, n, BODY=body, W=W, KIND=1, num_warps=W)
                f(); torch.cuda.synchronize()
                a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); f(); b.record(); torch.cuda.synchronize()
                t=a.elapsed_time(b); instr=n*body*8*W*ctas
                print("ctas",ctas,"warps",W,"instr in loop",body*8,"IPC at 1.755GHz",round(instr/(t*1e-3*1.755e9),2),flush=True)
if __name__=="__main__": main()
