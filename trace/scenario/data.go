package scenario

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// maxData is the longest piece of data of one line.
const maxData = 1 << 24

// parseData reads bytes: "text", hex:0a0b, zero:N, fill:BYTE:N, pattern:SEED:N, and pattern:SEED+OFFSET:N.
func parseData(s string) ([]byte, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return []byte(s[1 : len(s)-1]), nil
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "hex":
		b, err := hex.DecodeString(rest)
		if err != nil {
			return nil, fmt.Errorf("%q is not an even number of hexadecimal digits", rest)
		}
		return b, nil
	case "zero":
		n, err := length(rest)
		return make([]byte, n), err
	case "fill", "pattern":
		a, b, ok := strings.Cut(rest, ":")
		if !ok {
			break
		}
		n, err := length(b)
		if err != nil {
			return nil, err
		}
		seed, off, _ := strings.Cut(a, "+")
		v, err := number(seed, 8)
		if err != nil {
			return nil, err
		}
		var o uint64
		if off != "" {
			if o, err = number(off, 32); err != nil {
				return nil, err
			}
		}
		out := make([]byte, n)
		for i := range out {
			if out[i] = byte(v); kind == "pattern" {
				out[i] = pattern(byte(v), o+uint64(i))
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf(`%q are no bytes: "text", hex:0a0b, zero:N, fill:BYTE:N and pattern:SEED[+OFFSET]:N are`, s)
}

// pattern is byte i of a pattern: neither a byte nor a block of 256 is like its neighbour.
func pattern(seed byte, i uint64) byte { return seed + byte(i) + byte(i>>8) }

func length(s string) (int, error) {
	n, err := number(s, 32)
	if err == nil && n > maxData {
		err = fmt.Errorf("%d bytes: at most %d are possible", n, maxData)
	}
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// differ says where got is not what was wanted; "" if it is.
func differ(want, got []byte) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("byte %d is 0x%02x, not 0x%02x", i, got[i], want[i])
		}
	}
	if len(want) != len(got) {
		return fmt.Sprintf("%d bytes, not %d", len(got), len(want))
	}
	return ""
}
