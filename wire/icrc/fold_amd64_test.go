package icrc

import (
	"fmt"
	"testing"
)

// TestUpdateAllWidths: a processor that multiplies less at a time, or nothing, comes to the same.
func TestUpdateAllWidths(t *testing.T) {
	defer func(was int, pay bool) { foldWidth, instructions = was, pay }(foldWidth, instructions)
	widest := foldWidth
	instructions = true // also where they do not pay
	for _, width := range []int{0, 256, 512} {
		if width > widest {
			t.Logf("this processor does not multiply %d bits at a time", width)
			continue
		}
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			foldWidth = width
			TestUpdateAsHashCRC32(t)
			TestUpdateAtTheEdge(t)
		})
	}
}
