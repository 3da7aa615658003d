// Package codes replaces Gardener's package of this path: the same names and numbers.
package codes

// Code is a machine code.
type Code uint32

// The codes; all but the last one are gRPC's.
const (
	OK Code = iota
	Canceled
	Unknown
	InvalidArgument
	DeadlineExceeded
	NotFound
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	OutOfRange
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
	Uninitialized
)

var names = []string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
	"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
	"DataLoss", "Unauthenticated", "Uninitialized",
}

func (c Code) String() string {
	return names[c]
}

// StringToCode parses a name. An unknown name gives Unknown.
func StringToCode(name string) Code {
	for code, known := range names {
		if known == name {
			return Code(code)
		}
	}
	return Unknown
}
