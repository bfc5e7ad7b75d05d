-- The shops of `seckill seed`.
INSERT INTO tb_shop (id, name, type_id, images, area, address, x, y, avg_price, open_hours) VALUES
    (1, '桥头茶餐厅', 1, '', '大关', '金华路 29 号', 120.149, 30.316, 80, '10:00-22:00'),
    (2, '河畔烤鱼', 1, '', '拱宸桥', '上塘路 1035 号', 120.152, 30.327, 95, '11:00-23:00'),
    (3, '星光 KTV', 2, '', '水晶城', '丽水路 66 号', 120.141, 30.321, 60, '12:00-02:00')
