#include "textflag.h"

// FOLD multiplies the halves of each 16 bytes of Z by the factors in K, and adds both products to what is so many bytes further on.
#define FOLD(K, Z, T, FURTHER) \
	VPCLMULQDQ $0x00, K, Z, T;      \
	VPCLMULQDQ $0x11, K, Z, Z;      \
	VPTERNLOGQ $0x96, FURTHER, T, Z // the sum of the three

// JOIN folds Z0 to Z2, 64 bytes each, to Z3, and leaves that in Z0. Z4 has the factors by 64 bytes.
#define JOIN \
	FOLD(Z4, Z0, Z5, Z1); \
	FOLD(Z4, Z0, Z5, Z2); \
	FOLD(Z4, Z0, Z5, Z3)

// LAST folds the first three quarters of Z0 by 48, 32 and 16 bytes to the fourth, and leaves the sum in AX and BX. DX is k.
#define LAST \
	VMOVDQU64     32(DX), Z4;        \
	VPCLMULQDQ    $0x00, Z4, Z0, Z5; \
	VPCLMULQDQ    $0x11, Z4, Z0, Z6; \
	VPXORQ        Z5, Z6, Z6;        \
	VEXTRACTI32X4 $3, Z0, X0;        \
	VEXTRACTI32X4 $1, Z6, X1;        \
	VEXTRACTI32X4 $2, Z6, X2;        \
	VPXOR         X6, X0, X0;        \
	VPXOR         X1, X0, X0;        \
	VPXOR         X2, X0, X0;        \
	VMOVQ         X0, AX;            \
	VPEXTRQ       $1, X0, BX;        \
	VZEROUPPER

// func fold512(reg uint32, ones uint64, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·fold512(SB), NOSPLIT, $0-56
	MOVL reg+0(FP), AX
	MOVQ ones+8(FP), BX
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX

	// The first 8 to 64 bytes, so that the others are a multiple of 64, behind as many zeros as are missing, which count nothing.
	LEAQ        -1(CX), R8
	ANDQ        $63, R8
	INCQ        R8           // so many bytes
	MOVQ        $64, R9
	SUBQ        R8, R9       // so many zeros
	MOVQ        $-1, R10
	SHLXQ       R9, R10, R10
	KMOVQ       R10, K1
	SUBQ        R9, SI
	VMOVDQU8.Z  (SI), K1, Z0 // what is masked is not read
	VMOVQ       BX, X5
	VPEXPANDB.Z Z5, K1, Z5
	VPORQ       Z5, Z0, Z0
	VMOVQ       AX, X5       // the register is added to the first four bytes
	VPEXPANDB.Z Z5, K1, Z5
	VPXORQ      Z5, Z0, Z0
	ADDQ        $64, SI
	SUBQ        R8, CX

	CMPQ            CX, $192
	JLT             few
	VMOVDQU64       (SI), Z1
	VMOVDQU64       64(SI), Z2
	VMOVDQU64       128(SI), Z3
	ADDQ            $192, SI
	SUBQ            $192, CX
	VBROADCASTI32X4 (DX), Z4     // by 256 bytes

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
	JOIN
	JMP             narrow

few:
	VBROADCASTI32X4 16(DX), Z4

narrow:
	CMPQ CX, $64
	JLT  last
	FOLD(Z4, Z0, Z5, (SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  narrow

last:
	LAST
	MOVQ AX, lo+40(FP)
	MOVQ BX, hi+48(FP)
	RET

// func copy512(reg uint32, dst, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·copy512(SB), NOSPLIT, $0-56
	MOVL reg+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX

	VMOVD           AX, X5
	VMOVDQU64       (SI), Z0
	VMOVDQU64       Z0, (DI)
	VPXORQ          Z5, Z0, Z0
	VMOVDQU64       64(SI), Z1
	VMOVDQU64       128(SI), Z2
	VMOVDQU64       192(SI), Z3
	VMOVDQU64       Z1, 64(DI)
	VMOVDQU64       Z2, 128(DI)
	VMOVDQU64       Z3, 192(DI)
	VBROADCASTI32X4 (DX), Z4

wide:
	ADDQ      $256, SI
	ADDQ      $256, DI
	SUBQ      $256, CX
	CMPQ      CX, $256
	JLT       join
	VMOVDQU64 (SI), Z9
	VMOVDQU64 64(SI), Z10
	VMOVDQU64 128(SI), Z11
	VMOVDQU64 192(SI), Z12
	VMOVDQU64 Z9, (DI)
	VMOVDQU64 Z10, 64(DI)
	VMOVDQU64 Z11, 128(DI)
	VMOVDQU64 Z12, 192(DI)
	FOLD(Z4, Z0, Z5, Z9)
	FOLD(Z4, Z1, Z6, Z10)
	FOLD(Z4, Z2, Z7, Z11)
	FOLD(Z4, Z3, Z8, Z12)
	JMP       wide

join:
	VBROADCASTI32X4 16(DX), Z4
	JOIN

narrow:
	CMPQ      CX, $64
	JLT       last
	VMOVDQU64 (SI), Z9
	VMOVDQU64 Z9, (DI)
	FOLD(Z4, Z0, Z5, Z9)
	ADDQ      $64, SI
	ADDQ      $64, DI
	SUBQ      $64, CX
	JMP       narrow

last:
	LAST
	MOVQ AX, lo+40(FP)
	MOVQ BX, hi+48(FP)
	RET
