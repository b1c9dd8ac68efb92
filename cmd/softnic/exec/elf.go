//go:build linux

package exec

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// image is what decides whether a loader takes a library.
type image struct {
	class   elf.Class
	data    elf.Data
	machine elf.Machine
	interp  string // the dynamic loader; "" for what is linked statically
}

// maxInterp bounds the name of a loader (PATH_MAX).
const maxInterp = 4096

var errNotELF = errors.New("not an ELF file")

// readImage reads the header and the program headers of an ELF file. Package debug/elf wants
// section headers too, which a program that runs well may not have.
func readImage(r io.ReaderAt) (image, error) {
	var ident [64]byte
	n, err := r.ReadAt(ident[:], 0)
	if n < 20 || string(ident[:4]) != elf.ELFMAG {
		if err != nil && err != io.EOF {
			return image{}, err
		}
		return image{}, errNotELF
	}
	im := image{class: elf.Class(ident[elf.EI_CLASS]), data: elf.Data(ident[elf.EI_DATA])}
	var order binary.ByteOrder = binary.LittleEndian
	if im.data == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	im.machine = elf.Machine(order.Uint16(ident[18:]))
	var at int64
	var size, count int
	switch {
	case im.class == elf.ELFCLASS64 && n == 64:
		at, size, count = int64(order.Uint64(ident[32:])), int(order.Uint16(ident[54:])), int(order.Uint16(ident[56:]))
	case im.class == elf.ELFCLASS32 && n >= 52:
		at, size, count = int64(order.Uint32(ident[28:])), int(order.Uint16(ident[42:])), int(order.Uint16(ident[44:]))
	default:
		return im, fmt.Errorf("a broken ELF header (%v)", im.class)
	}
	least := 56
	if im.class == elf.ELFCLASS32 {
		least = 32
	}
	if count > 0 && (size < least || at < 0) {
		return im, errors.New("broken ELF program headers")
	}
	head := make([]byte, least)
	for i := range count {
		if _, err := r.ReadAt(head, at+int64(i)*int64(size)); err != nil {
			return im, errors.New("cut off in its ELF program headers")
		}
		if elf.ProgType(order.Uint32(head)) != elf.PT_INTERP {
			continue
		}
		off, length := int64(order.Uint32(head[4:])), int64(order.Uint32(head[16:]))
		if im.class == elf.ELFCLASS64 {
			off, length = int64(order.Uint64(head[8:])), int64(order.Uint64(head[32:]))
		}
		if off < 0 || length < 1 || length > maxInterp {
			return im, errors.New("a broken name of its loader")
		}
		name := make([]byte, length)
		if _, err := r.ReadAt(name, off); err != nil {
			return im, errors.New("cut off in the name of its loader")
		}
		im.interp, _, _ = strings.Cut(string(name), "\x00")
		return im, nil
	}
	return im, nil
}

// String names the kind of machine code, as "x86-64, 64 bits".
func (im image) String() string {
	bits := map[elf.Class]string{elf.ELFCLASS32: "32 bits", elf.ELFCLASS64: "64 bits"}[im.class]
	name := strings.ToLower(strings.TrimPrefix(im.machine.String(), "EM_"))
	switch im.machine {
	case elf.EM_X86_64:
		name = "x86-64"
	case elf.EM_386:
		name = "x86"
	}
	if im.data == elf.ELFDATA2MSB {
		bits += ", big-endian"
	}
	return name + ", " + bits
}

// fits reports whether code of one kind can be loaded beside the other.
func (im image) fits(o image) bool {
	return im.class == o.class && im.data == o.data && im.machine == o.machine
}
