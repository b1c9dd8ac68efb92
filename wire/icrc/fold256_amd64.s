#include "textflag.h"

// As in fold512_amd64.s, with 256 bits.

#define FOLD(K, Y, T, FURTHER) \
	VPCLMULQDQ $0x00, K, Y, T; \
	VPCLMULQDQ $0x11, K, Y, Y; \
	VPXOR      T, Y, Y;        \
	VPXOR      FURTHER, Y, Y

// JOIN folds Y0 to Y2, 32 bytes each, to Y3, and leaves that in Y0. Y4 has the factors by 32 bytes.
#define JOIN \
	FOLD(Y4, Y0, Y5, Y1); \
	FOLD(Y4, Y0, Y5, Y2); \
	FOLD(Y4, Y0, Y5, Y3)

// LAST folds the first half of Y0 by 16 bytes to the second, and leaves the sum in AX and BX. DX is k.
#define LAST \
	VMOVDQU      64(DX), X4;     \
	VEXTRACTI128 $1, Y0, X1;     \
	FOLD(X4, X0, X5, X1);        \
	VMOVQ        X0, AX;         \
	VPEXTRQ      $1, X0, BX;     \
	VZEROUPPER

// func fold256(reg uint32, ones uint64, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·fold256(SB), NOSPLIT, $0-56
	MOVL reg+0(FP), AX
	MOVQ ones+8(FP), BX
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX

	// The first 8 to 16 bytes, so that the others are a multiple of 16, behind as many zeros as are missing, which count nothing.
	LEAQ    -1(CX), R8
	ANDQ    $15, R8
	INCQ    R8            // so many bytes
	VMOVDQU (SI), X0
	VMOVQ   BX, X5
	VPOR    X5, X0, X0
	VMOVD   AX, X5        // the register is added to the first four bytes
	VPXOR   X5, X0, X0
	LEAQ    ·slide(SB), R9
	VPSHUFB (R9)(R8*1), X0, X0
	ADDQ    R8, SI
	SUBQ    R8, CX

	// They are the first half of 32, or the second behind 16 zeros.
	TESTQ       $16, CX
	JZ          even
	VINSERTI128 $1, (SI), Y0, Y0
	ADDQ        $16, SI
	SUBQ        $16, CX
	JMP         first

even:
	VPERM2I128 $0x08, Y0, Y0, Y0

first:
	CMPQ           CX, $96
	JLT            few
	VMOVDQU        (SI), Y1
	VMOVDQU        32(SI), Y2
	VMOVDQU        64(SI), Y3
	ADDQ           $96, SI
	SUBQ           $96, CX
	VBROADCASTI128 96(DX), Y4   // by 128 bytes

wide:
	CMPQ CX, $128
	JLT  join
	FOLD(Y4, Y0, Y5, (SI))
	FOLD(Y4, Y1, Y6, 32(SI))
	FOLD(Y4, Y2, Y7, 64(SI))
	FOLD(Y4, Y3, Y8, 96(SI))
	ADDQ $128, SI
	SUBQ $128, CX
	JMP  wide

join:
	VBROADCASTI128 48(DX), Y4 // by 32 bytes
	JOIN
	JMP            narrow

few:
	VBROADCASTI128 48(DX), Y4

narrow:
	CMPQ CX, $32
	JLT  last
	FOLD(Y4, Y0, Y5, (SI))
	ADDQ $32, SI
	SUBQ $32, CX
	JMP  narrow

last:
	LAST
	MOVQ AX, lo+40(FP)
	MOVQ BX, hi+48(FP)
	RET

// slide[n:] is what VPSHUFB needs to move the first n bytes to the end, behind zeros.
DATA ·slide+0(SB)/8, $0x8080808080808080
DATA ·slide+8(SB)/8, $0x8080808080808080
DATA ·slide+16(SB)/8, $0x0706050403020100
DATA ·slide+24(SB)/8, $0x0F0E0D0C0B0A0908
GLOBL ·slide(SB), RODATA|NOPTR, $32

// func copy256(reg uint32, dst, p *byte, n int, k *foldConstants) (lo, hi uint64)
TEXT ·copy256(SB), NOSPLIT, $0-56
	MOVL reg+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX

	VMOVD          AX, X5
	VMOVDQU        (SI), Y0
	VMOVDQU        Y0, (DI)
	VPXOR          Y5, Y0, Y0
	VMOVDQU        32(SI), Y1
	VMOVDQU        64(SI), Y2
	VMOVDQU        96(SI), Y3
	VMOVDQU        Y1, 32(DI)
	VMOVDQU        Y2, 64(DI)
	VMOVDQU        Y3, 96(DI)
	VBROADCASTI128 96(DX), Y4

wide:
	ADDQ    $128, SI
	ADDQ    $128, DI
	SUBQ    $128, CX
	CMPQ    CX, $128
	JLT     join
	VMOVDQU (SI), Y9
	VMOVDQU 32(SI), Y10
	VMOVDQU 64(SI), Y11
	VMOVDQU 96(SI), Y12
	VMOVDQU Y9, (DI)
	VMOVDQU Y10, 32(DI)
	VMOVDQU Y11, 64(DI)
	VMOVDQU Y12, 96(DI)
	FOLD(Y4, Y0, Y5, Y9)
	FOLD(Y4, Y1, Y6, Y10)
	FOLD(Y4, Y2, Y7, Y11)
	FOLD(Y4, Y3, Y8, Y12)
	JMP     wide

join:
	VBROADCASTI128 48(DX), Y4
	JOIN

narrow:
	CMPQ    CX, $32
	JLT     last
	VMOVDQU (SI), Y9
	VMOVDQU Y9, (DI)
	FOLD(Y4, Y0, Y5, Y9)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $32, CX
	JMP     narrow

last:
	LAST
	MOVQ AX, lo+40(FP)
	MOVQ BX, hi+48(FP)
	RET

// func features7() (ecx uint32)
TEXT ·features7(SB), NOSPLIT, $0-4
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL CX, ecx+0(FP)
	RET
