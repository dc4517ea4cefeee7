;; Denies with a message that is no UTF-8.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (i32.store8 (global.get $decision) (i32.const 2))
      (i32.store16 (i32.const 1020) (i32.const 0xfffe))
      (i32.store offset=16 (global.get $decision) (i32.const 1020))
      (i32.store offset=20 (global.get $decision) (i32.const 2))))
  (global.get $decision))
