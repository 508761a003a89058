import os, sys, torch
import gpu_peers as peers, gpu_backward_peers as b
from gpu_peers import tw
lib=tw.Library(sys.argv[1]); labs=sys.argv[2].split(',')
peers.ROUNDS=7
cells=[c.split(':') for c in sys.argv[3].split(',')]
print('cell'.ljust(22)+' '.join(f'{l:>7}' for l in labs)+'   cudnn')
for d,mask,s in cells:
    d,s=int(d),int(s); pr=b.Problem(d,s,(2048//d,2048//d),mask); runs={}
    for l in labs:
        os.environ['TILEWISE_LAB']=l.rstrip('f')
        runs[l]=peers.graphed(pr.tilewise(lib,l.endswith('f'),False))
    runs['cudnn']=pr.peer(b.cudnn_backward)
    r=peers.interleaved(runs,pr.flops)
    print(f'{d} {mask} {s}'.ljust(22)+' '.join(f'{pr.flops/r[l]/1e9:7.0f}' for l in labs)+f"{pr.flops/r['cudnn']/1e9:8.0f}",flush=True)
