#include "textflag.h"

// What a polynomial is multiplied by so that it can be added to one so many bytes further on, see foldBy.
//
// func fold512(reg uint32, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·fold512(SB), NOSPLIT, $0-48
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), DX
	MOVL reg+0(FP), AX

	// Four times 64 bytes, the register added to the first four of them.
	VMOVD     AX, X5
	VMOVDQU64 (SI), Z0
	VPXORQ    Z5, Z0, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 (DX), Z4 // by 256 bytes

wide:
	CMPQ       CX, $256
	JLT        join
	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPCLMULQDQ $0x00, Z4, Z1, Z6
	VPCLMULQDQ $0x11, Z4, Z1, Z1
	VPCLMULQDQ $0x00, Z4, Z2, Z7
	VPCLMULQDQ $0x11, Z4, Z2, Z2
	VPCLMULQDQ $0x00, Z4, Z3, Z8
	VPCLMULQDQ $0x11, Z4, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z5, Z0    // the sum of three
	VPTERNLOGQ $0x96, 64(SI), Z6, Z1
	VPTERNLOGQ $0x96, 128(SI), Z7, Z2
	VPTERNLOGQ $0x96, 192(SI), Z8, Z3
	ADDQ       $256, SI
	SUBQ       $256, CX
	JMP        wide

join:
	VBROADCASTI32X4 16(DX), Z4 // by 64 bytes

	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPTERNLOGQ $0x96, Z1, Z5, Z0
	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPTERNLOGQ $0x96, Z2, Z5, Z0
	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPTERNLOGQ $0x96, Z3, Z5, Z0

narrow:
	CMPQ       CX, $64
	JLT        last
	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPTERNLOGQ $0x96, (SI), Z5, Z0
	ADDQ       $64, SI
	SUBQ       $64, CX
	JMP        narrow

last:
	// The first three quarters of 64 bytes, by 48, 32 and 16 bytes, to the fourth.
	VMOVDQU64     32(DX), Z4
	VPCLMULQDQ    $0x00, Z4, Z0, Z5
	VPCLMULQDQ    $0x11, Z4, Z0, Z6
	VPXORQ        Z5, Z6, Z6
	VEXTRACTI32X4 $3, Z0, X0
	VEXTRACTI32X4 $1, Z6, X1
	VEXTRACTI32X4 $2, Z6, X2
	VPXOR         X6, X0, X0
	VPXOR         X1, X0, X0
	VPXOR         X2, X0, X0
	VMOVQ         X0, AX
	VPEXTRQ       $1, X0, BX
	MOVQ          AX, lo+32(FP)
	MOVQ          BX, hi+40(FP)
	VZEROUPPER
	RET
