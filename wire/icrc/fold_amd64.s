#include "textflag.h"

// FOLD multiplies the halves of each 16 bytes of Z by the factors in K, and adds both products to what is so many bytes further on.
#define FOLD(K, Z, T, FURTHER) \
	VPCLMULQDQ $0x00, K, Z, T;       \
	VPCLMULQDQ $0x11, K, Z, Z;       \
	VPTERNLOGQ $0x96, FURTHER, T, Z // the sum of the three

// func fold512(reg uint32, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·fold512(SB), NOSPLIT, $0-48
	MOVL reg+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), DX

	// Four times 64 bytes, the register added to the first four of them.
	VMOVD     AX, X5
	VPXORQ    (SI), Z5, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 (DX), Z4 // by 256 bytes

wide:
	CMPQ CX, $256
	JLT  join
	FOLD(Z4, Z0, Z5, (SI))
	FOLD(Z4, Z1, Z6, 64(SI))
	FOLD(Z4, Z2, Z7, 128(SI))
	FOLD(Z4, Z3, Z8, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	JMP  wide

join:
	VBROADCASTI32X4 16(DX), Z4 // by 64 bytes
	FOLD(Z4, Z0, Z5, Z1)
	FOLD(Z4, Z0, Z5, Z2)
	FOLD(Z4, Z0, Z5, Z3)

narrow:
	CMPQ CX, $64
	JLT  last
	FOLD(Z4, Z0, Z5, (SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  narrow

last:
	// The first three quarters of 64 bytes by 48, 32 and 16 bytes, to the fourth.
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
